"""Files that were cut, damaged or made to mislead: a clean refusal, quickly and without filling the memory."""

from __future__ import annotations

import json
import resource
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from weights_files import llama_tensors, write_folder, write_gguf

from corekit.weights import SourceError, open_source
from corekit.weights.folder import FolderSource
from corekit.weights.gguf import GgufSource
from corekit.weights.safetensors_header import tensor_sizes


@pytest.fixture(autouse=True)
def _quick_and_small() -> Iterator[None]:
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    yield
    assert time.perf_counter() - started < 30
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20, "more than a gigabyte (in KiB)"


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(tensors: int, keys: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


ARCHITECTURE = text("general.architecture") + struct.pack("<I", 8) + text("llama")
BIG = 1 << 63


def entry(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)


HOSTILE = {
    "empty": b"",
    "not gguf": b"PK\x03\x04" * 10,
    "version 1": header(0, 0, 1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "cut in the counts": b"GGUF\x03\x00\x00\x00\x01",
    "absurd tensor count": header(BIG, 0) + b"\0" * 100,
    "absurd key count": header(0, BIG) + b"\0" * 100,
    "key count beyond the file": header(0, 1000) + ARCHITECTURE,
    "key longer than the file": header(0, 1) + struct.pack("<Q", BIG) + b"\0" * 64,
    "string longer than the file": header(0, 1) + text("a") + struct.pack("<IQ", 8, BIG) + b"\0" * 64,
    "unknown value type": header(0, 1) + text("a") + struct.pack("<I", 99) + b"\0" * 64,
    "absurd array": header(0, 1) + text("a") + struct.pack("<IIQ", 9, 0, BIG) + b"\0" * 64,
    "array beyond the file": header(0, 1) + text("a") + struct.pack("<IIQ", 9, 12, 1 << 20) + b"\0" * 64,
    "strings beyond the file": header(0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 1 << 21) + b"\0" * 64,
    "array of arrays": header(0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1) + b"\0" * 64,
    "key that is not text": header(0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + b"\0" * 64,
    "key twice": header(0, 2) + ARCHITECTURE * 2,
    "alignment 0": header(0, 1) + text("general.alignment") + struct.pack("<II", 4, 0),
    "alignment as text": header(0, 1) + text("general.alignment") + struct.pack("<I", 8) + text("32"),
    "no architecture": header(0, 0) + b"\0" * 64,
    "no tensors": header(0, 1) + ARCHITECTURE,
    "dimension 2^63": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (BIG, 2), 0, 0) + b"\0" * 64,
    "dimensions that overflow to a small product": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (1 << 32, 1 << 32), 0, 0) + b"\0" * 64,
    "dimension 0": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (0, 4), 0, 0) + b"\0" * 64,
    "too many dimensions": header(1, 1) + ARCHITECTURE + text("x") + struct.pack("<I", 1 << 31) + b"\0" * 64,
    "no dimension": header(1, 1) + ARCHITECTURE + entry("x", (), 0, 0) + b"\0" * 64,
    "unknown tensor type": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (4, 4), 77, 0) + b"\0" * 128,
    "row that no block fills": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (33, 4), 8, 0) + b"\0" * 256,
    "offset beyond the file": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (4, 4), 0, 1 << 40) + b"\0" * 128,
    "offset off the grid": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (4, 4), 0, 3) + b"\0" * 128,
    "tensor twice": header(2, 1) + ARCHITECTURE + entry("token_embd.weight", (4, 4), 0, 0) * 2 + b"\0" * 128,
    "one-dimensional embedding": header(1, 1) + ARCHITECTURE + entry("token_embd.weight", (4,), 0, 0) + b"\0" * 128,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_gguf(tmp_path: Path, case: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(SourceError, match=r"m.gguf"):
        GgufSource(path, name=str(path), progress=False)


def test_tensors_that_share_bytes_cannot_multiply_the_memory(tmp_path: Path) -> None:
    many = b"".join(entry(f"blk.{at}.attn_q.weight", (1024, 16), 0, 0) for at in range(1000))
    path = tmp_path / "m.gguf"
    path.write_bytes(header(1000, 1) + ARCHITECTURE + many + b"\0" * (1 << 17))
    with pytest.raises(SourceError, match=r"share bytes"):
        GgufSource(path, name="m", progress=False)


def test_neighbours_may_not_overlap(tmp_path: Path) -> None:
    table = entry("blk.0.attn_q.weight", (16, 4), 0, 0) + entry("blk.0.attn_k.weight", (16, 4), 0, 224)
    path = tmp_path / "m.gguf"
    path.write_bytes(header(2, 1) + ARCHITECTURE + table + b"\0" * 1024)
    with pytest.raises(SourceError, match=r"'blk.0.attn_q.weight' and 'blk.0.attn_k.weight' share bytes"):
        GgufSource(path, name="m", progress=False)


def test_a_header_that_would_fill_the_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with path.open("wb") as file:
        file.write(header(0, 1) + text("a") + struct.pack("<IQ", 8, 1 << 30))
        file.truncate(1 << 31)  # a hole, which takes no room
    with pytest.raises(SourceError, match=r"its header has more than \d+ bytes"):
        GgufSource(path, name="m", progress=False)


@pytest.mark.parametrize("key", ["general.architecture", "split.count", "general.alignment"])
def test_a_long_value_makes_no_long_message(tmp_path: Path, key: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(header(0, 1) + text(key) + struct.pack("<I", 8) + text("long\n" * 100_000))
    with pytest.raises(SourceError) as caught:
        GgufSource(path, name="m", progress=False)
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


def write_chunks(folder: Path, count: int) -> list[Path]:
    content = write_gguf(folder / "whole.gguf", llama_tensors()).read_bytes()
    size = -(-len(content) // count)
    chunks = [folder / f"m.gguf.part{number + 1}" for number in range(count)]
    for number, chunk in enumerate(chunks):
        chunk.write_bytes(content[number * size : (number + 1) * size])
    return chunks


def test_links_that_make_one_file_two_chunks(tmp_path: Path) -> None:
    one, two = write_chunks(tmp_path, 2)
    two.unlink()
    two.symlink_to(one.name)
    with pytest.raises(SourceError, match=r"part1 is named twice, under different names: m.gguf.part2 is the same file"):
        open_source(str(one), cache_dir=tmp_path)


def test_more_chunks_than_files_may_be_open(tmp_path: Path) -> None:
    source = open_source(str(write_chunks(tmp_path, 100)[0]), cache_dir=tmp_path, progress=False)
    names = dict(source.tensors()).keys()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with pytest.raises(SourceError, match=r"Too many open files.* here 100 at once. Raise the limit \(ulimit -n\)"):
            dict(source.tensors())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert dict(source.tensors()).keys() == names


@pytest.fixture(scope="module")
def sound_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    extra = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}
    return write_gguf(tmp_path_factory.mktemp("sound") / "m.gguf", llama_tensors(), extra=extra).read_bytes()


def test_every_shorter_file_is_refused(tmp_path: Path, sound_gguf: bytes) -> None:
    path = tmp_path / "m.gguf"
    for length in [*range(0, 2000, 37), *range(2000, len(sound_gguf) - 32, 9973), len(sound_gguf) - 32]:
        path.write_bytes(sound_gguf[:length])
        with pytest.raises(SourceError):
            GgufSource(path, name="m", progress=False)


@settings(max_examples=150, deadline=None)
@given(changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_headers_are_read_or_refused_cleanly(tmp_path_factory: pytest.TempPathFactory, sound_gguf: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(sound_gguf)
    for at, value in changes:
        damaged[at] = value
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(damaged)
    try:
        source = GgufSource(path, name="m", progress=False)
        source.tokenizer_files()
        for name, tensor in source.tensors():
            assert name in source.tensor_names
            assert tensor.numel() > 0
    except SourceError:
        pass


def safetensors_bytes(content: object, body: int = 64, length: int | None = None) -> bytes:
    packed = json.dumps(content).encode() if not isinstance(content, bytes) else content
    return struct.pack("<Q", len(packed) if length is None else length) + packed + b"\0" * body


def one(**changes: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]} | changes}


HOSTILE_SAFETENSORS = {
    "empty": b"",
    "seven bytes": b"\0" * 7,
    "absurd header length": safetensors_bytes(one(), length=BIG),
    "header beyond the file": safetensors_bytes(one(), length=1000),
    "not json": safetensors_bytes(b"{{{{"),
    "not text": safetensors_bytes(b"\xff\xfe\xfd\xfc"),
    "deep json": safetensors_bytes(b"[" * 100_000),
    "not an object": safetensors_bytes([1, 2]),
    "entry not an object": safetensors_bytes({"a": 3}),
    "shape 2^63": safetensors_bytes(one(shape=[BIG])),
    "shape overflows": safetensors_bytes(one(shape=[1 << 62, 4, 4])),
    "negative shape": safetensors_bytes(one(shape=[-4, -4])),
    "shape not a list": safetensors_bytes(one(shape="4")),
    "too many dimensions": safetensors_bytes(one(shape=[1] * 1000)),
    "boolean dimension": safetensors_bytes(one(shape=[True, 16])),
    "offsets beyond the file": safetensors_bytes(one(data_offsets=[1 << 40, (1 << 40) + 64])),
    "offsets backwards": safetensors_bytes(one(data_offsets=[64, 0])),
    "hole before the tensor": safetensors_bytes(one(shape=[4], data_offsets=[48, 64])),
    "bytes after the tensors": safetensors_bytes(one(), body=65),
    "cut body": safetensors_bytes(one(), body=63),
    "unknown type": safetensors_bytes(one(dtype="PICKLE")),
    "type not text": safetensors_bytes(one(dtype=7)),
    "overlap": safetensors_bytes(one() | {"b": {"dtype": "F32", "shape": [8], "data_offsets": [32, 64]}}),
}


@pytest.mark.parametrize("case", HOSTILE_SAFETENSORS)
def test_hostile_safetensors(tmp_path: Path, case: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(HOSTILE_SAFETENSORS[case])
    with pytest.raises(SourceError, match=r"model.safetensors"):
        FolderSource(tmp_path, name="m", progress=False)


def test_a_type_that_cannot_be_hashed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(one(dtype=["F32"])))
    with pytest.raises(SourceError, match=r"type"):
        tensor_sizes(path)


def test_a_sound_file_passes_the_same_check(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, {"a": torch.zeros(3, 4), "b": torch.zeros(0), "c": torch.zeros((), dtype=torch.bfloat16)})
    assert tensor_sizes(folder / "model.safetensors") == {"a": 48, "b": 0, "c": 2}
