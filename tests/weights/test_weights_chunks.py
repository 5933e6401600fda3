"""GGUF models in several files: one file cut into chunks of bytes, and parts that are GGUF files of their own."""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType as Kind
from weights_files import llama_tensors, write_gguf

from corekit.api import WeightSource
from corekit.weights import SourceError, open_source
from corekit.weights.gguf_header import read_header
from corekit.weights.stored import Stored
from corekit.weights.wheel import extract_chunk

VOCABULARY = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"]}


def opened(*paths: Path, **options: bool) -> WeightSource:
    return open_source(" + ".join(map(str, paths)), cache_dir=paths[0].parent / "cache", progress=False, **options)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tensors = llama_tensors(bias=True)
    types = {"model.embed_tokens.weight": Kind.Q8_0, "model.layers.0.mlp.up_proj.weight": Kind.Q4_1}
    return write_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", tensors, architecture="qwen2", types=types, extra=VOCABULARY)


def cut(path: Path, folder: Path, borders: Sequence[int], name: str = "m.gguf.part{}") -> list[Path]:
    content = path.read_bytes()
    ends = [0, *borders, len(content)]
    chunks = [folder / name.format(number) for number in range(1, len(ends))]
    for chunk, start, end in zip(chunks, ends, ends[1:], strict=False):
        chunk.write_bytes(content[start:end])
    return chunks


def assert_same(source: WeightSource, other: WeightSource) -> None:
    assert source.config == other.config
    assert source.tokenizer_files() == other.tokenizer_files() != {}
    assert source.num_bytes == other.num_bytes
    found, wanted = dict(source.tensors()), dict(other.tensors())
    assert list(found) == list(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name


def test_a_file_may_be_cut_anywhere(whole: Path, tmp_path: Path) -> None:
    """Inside the fixed header, a key, a list of strings, the table of tensors, the padding, between and inside tensors."""
    content, plain = whole.read_bytes(), opened(whole)
    header = read_header(Stored((whole,)))
    first = min(tensor.offset for tensor in header.tensors)
    second = sorted(tensor.offset for tensor in header.tensors)[1]
    places = {
        "fixed header": [2, 13],
        "key": [content.index(b"general.architecture") + 7],
        "strings": [content.index(b"tokenizer.ggml.tokens") + 40],
        "table": [content.index(b"token_embd.weight") + 3],
        "before the tensors": [first - 1, first],
        "between tensors": [second],
        "inside a tensor": [first + 1, second + 5, second + 6],
        "many": list(range(1000, len(content), 5000)),
    }
    for number, borders in enumerate(places.values()):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert_same(opened(*cut(whole, folder, borders)), plain)


@pytest.mark.parametrize("name", ["m.gguf.part{}", "m.gguf-part-{}-of-3", "m.gguf.part{}of3", "m.gguf.00{}", "m.gguf-split-{}"])
def test_the_first_chunk_names_the_others(whole: Path, tmp_path: Path, name: str) -> None:
    chunks = cut(whole, tmp_path, [500, 9000], name)
    source = pickle.loads(pickle.dumps(opened(chunks[0])))
    assert source.name == str(chunks[0])
    assert_same(source, opened(whole))
    with pytest.raises(SourceError, match=f"not the first chunk. Name the first: {chunks[0].name};"):
        opened(chunks[1])


def test_more_than_nine_chunks_count_on(whole: Path, tmp_path: Path) -> None:
    chunks = cut(whole, tmp_path, range(8000, 8000 * 12, 8000))
    assert len(chunks) == 12
    assert_same(opened(chunks[0]), opened(whole))


@pytest.mark.parametrize("name", ["m.gguf.part{}", "m.gguf.part{}of4"])
def test_a_missing_chunk_is_named(whole: Path, tmp_path: Path, name: str) -> None:
    chunks = cut(whole, tmp_path, [500, 9000, 20000], name)
    chunks[2].unlink()
    with pytest.raises(SourceError, match=f"chunk {chunks[2].name} is not in"):
        opened(chunks[0])


def test_a_missing_last_chunk_is_a_file_that_ends_too_early(whole: Path, tmp_path: Path) -> None:
    chunks = cut(whole, tmp_path, [500, 9000, 20000])
    chunks[3].unlink()
    with pytest.raises(SourceError, match=r"m.gguf.part1 and the 2 chunks after it: not a sound GGUF file: .* past the end of the file"):
        opened(chunks[0])


def test_chunks_that_are_not_what_they_should_be(whole: Path, tmp_path: Path) -> None:
    one, two, three = cut(whole, tmp_path, [5000, 30000], "chunk-{}.bin")
    size = whole.stat().st_size
    copy = tmp_path / "other-name"
    copy.hardlink_to(two)
    cases: dict[tuple[Path, ...], str] = {
        (two, one, three): r"by their names these are chunks 2, 1, 3, in this order",
        (one, three): r"by their names these are chunks 1, 3, in this order",
        (one, two, two, three): r"chunk-2.bin is named twice",
        (one, two, copy, three): r"named twice, under different names",
        (one, two, three, whole): rf"have {2 * size} bytes, and the last tensor ends at byte",
        (one, two, tmp_path / "chunk-9.bin"): r"by their names",
        (one, two, tmp_path / "absent"): r"there is no file .*absent",
    }
    for chunks, said in cases.items():
        with pytest.raises(SourceError, match=said):
            opened(*chunks)
    assert_same(opened(one, two, three), opened(whole))
    unnumbered = two.rename(tmp_path / "middle")  # names that do not count are taken in the order given, and the content must fit
    with pytest.raises(SourceError, match="does not start with GGUF"):
        opened(unnumbered, one, three)
    unnumbered.write_bytes(unnumbered.read_bytes()[:-1])
    with pytest.raises(SourceError, match="past the end of the file"):
        opened(one, unnumbered, three)
    unnumbered.write_bytes(b"")
    with pytest.raises(SourceError, match="middle is empty"):
        opened(one, unnumbered, three)


@pytest.mark.parametrize("source", [" + ", "a + ", "x + " * 2000 + "x"])
def test_odd_lists_of_chunks(tmp_path: Path, source: str) -> None:
    with pytest.raises(SourceError, match=r"chunks are named in order|no such folder"):
        open_source(source, cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["m.gguf.part1of99999", "m.gguf-part-1-of-0"])
def test_a_count_beyond_bounds_in_a_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(SourceError, match="1 to 1000 are read"):
        opened(tmp_path / name)


def test_a_chunk_that_changes_after_it_was_opened(whole: Path, tmp_path: Path) -> None:
    chunks = cut(whole, tmp_path, [500, 9000])
    source = opened(chunks[0])
    for content in (b"shorter", b"", chunks[1].read_bytes() + b"x"):
        chunks[1].write_bytes(content)
        with pytest.raises(SourceError, match=r"part2: it had another size"):
            dict(source.tensors())
    chunks[1].unlink()
    with pytest.raises(SourceError, match=r"part2: cannot be read"):
        dict(source.tensors())


# Chunks in packages


def package(folder: Path, number: int, files: dict[str, bytes]) -> str:
    """A wheel with these files; the source that names it."""
    folder.mkdir(exist_ok=True)
    path = folder / f"tiny_chunk{number}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"tiny_chunk{number}/{name}", content)
        archive.writestr(f"tiny_chunk{number}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny-chunk{number}\nVersion: 1.0\n")
        archive.writestr(f"tiny_chunk{number}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"tiny_chunk{number}-1.0.dist-info/RECORD", "")
    return f"pypi:tiny-chunk{number}==1.0#sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "links"


def test_chunks_in_packages(whole: Path, tmp_path: Path, links: Path) -> None:
    content = whole.read_bytes()
    sources = [
        package(links, number, {"__init__.py": b"raise SystemExit", "py.typed": b"", f"data/part{number}.bin": piece})
        for number, piece in enumerate((content[:7000], content[7000:]), start=1)
    ]
    joined = " + ".join(sources)
    source = open_source(joined, cache_dir=tmp_path / "cache", progress=False)
    assert source.name == joined
    assert_same(source, opened(whole))
    assert_same(open_source(joined, cache_dir=tmp_path / "cache", progress=False), source)
    assert sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()) == ["part1.bin", "part2.bin"], "no code was taken out"
    with pytest.raises(SourceError, match="these are chunks 2, 1"):
        open_source(" + ".join(reversed(sources)), cache_dir=tmp_path / "cache", progress=False)


@pytest.mark.parametrize("files", [{"__init__.py": b""}, {"a.bin": b"x", "b.bin": b"y"}])
def test_a_package_that_is_no_chunk(tmp_path: Path, files: dict[str, bytes]) -> None:
    package(tmp_path, 2, files)
    (wheel,) = tmp_path.glob("*.whl")
    with pytest.raises(SourceError, match=r"one file that is neither code nor text, and here are (0: none|2: 'tiny_chunk2/a.bin', 'tiny_chunk2/b.bin')"):
        extract_chunk(wheel, tmp_path / "out")


# Parts that are GGUF files of their own


def write_parts(folder: Path, count: int = 3, *, name: str = "m-{:05}-of-{:05}.gguf", changes: dict[int, dict[str, Any]] | None = None) -> list[Path]:
    """As gguf-split does it: metadata in the first part alone, every part with its number, tensors one after the other."""
    tensors = list(llama_tensors().items())
    size = -(-len(tensors) // count)
    paths = []
    for number in range(count):
        split = {"split.no": number, "split.count": count, "split.tensors.count": len(tensors), **(changes or {}).get(number, {})}
        path = folder / name.format(number + 1, count)
        write_gguf(path, dict(tensors[number * size : (number + 1) * size]), extra={**split, **VOCABULARY})
        paths.append(path)
    return paths


def test_parts_are_found_by_the_first(tmp_path: Path) -> None:
    first, *_ = write_parts(tmp_path)
    source = pickle.loads(pickle.dumps(opened(first)))
    written = llama_tensors()
    read = dict(source.tensors())
    assert set(read) == set(source.tensor_names) == set(written)
    assert source.num_bytes == sum(array.nbytes for array in written.values())
    for name, array in written.items():
        np.testing.assert_array_equal(read[name].numpy(), array)


def test_only_the_first_part_needs_the_models_metadata(tmp_path: Path) -> None:
    import gguf

    first, *others = write_parts(tmp_path, 2)
    tensors = read_header(Stored((others[0],))).tensors
    content = others[0].read_bytes()
    writer = gguf.GGUFWriter(others[0], "llama")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 2)
    writer.kv_data[0].pop("general.architecture")
    for tensor in tensors:
        writer.add_tensor(tensor.name, np.frombuffer(content, np.float32, tensor.num_bytes // 4, tensor.offset).reshape(tensor.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "general.architecture" not in read_header(Stored((others[0],))).metadata
    assert len(dict(opened(first).tensors())) == len(llama_tensors())


def test_missing_parts_are_named(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path)
    third.unlink()
    with pytest.raises(SourceError, match=rf"1 of its 3 parts are not in .*: {third.name}\."):
        opened(first)
    with pytest.raises(SourceError, match=rf"this is part 2 of 3. Name the first: {first.name}"):
        opened(second)


def test_parts_that_do_not_belong_together(tmp_path: Path) -> None:
    cases: list[tuple[dict[int, dict[str, Any]], str]] = [
        ({1: {"split.no": 2}}, r"00002-of-00003.gguf: part 2 of 3 is wanted, and by its own metadata the file is part 3 of 3"),
        ({1: {"split.count": 4}}, r"the file is part 2 of 4"),
        ({2: {"split.no": "two"}}, r"the file is no part of anything"),
        ({0: {"split.no": 1}}, r"part 1 of 3 is wanted"),
        ({0: {"split.tensors.count": 400}}, r"hold 20 tensors, and split.tensors.count says 400"),
        ({0: {"split.count": 1001}}, r"split.count is 1001; a whole number from 2 to 1000"),
        ({0: {"split.count": "3"}}, r"split.count is '3'"),
        ({0: {"split.count": 5}}, r"its name does not say so: parts are found by names such as NAME-00001-of-00005.gguf"),
    ]
    for number, (changes, said) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        first, *_ = write_parts(folder, changes=changes)
        with pytest.raises(SourceError, match=said):
            opened(first)


def test_a_tensor_in_two_parts_and_a_damaged_part(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path)
    sound = third.read_bytes()
    third.write_bytes(sound[:-100])
    with pytest.raises(SourceError, match=r"00003-of-00003.gguf: not a sound GGUF file: .* past the end"):
        opened(first)
    write_gguf(third, dict(list(llama_tensors().items())[:2]), extra={"split.no": 2, "split.count": 3})
    with pytest.raises(SourceError, match=r"00003-of-00003.gguf: tensor 'token_embd.weight' is in m-00001-of-00003.gguf already"):
        opened(first)
    third.write_bytes(sound)
    renamed = first.rename(tmp_path / "model.gguf")
    with pytest.raises(SourceError, match="this is one part of 3, and its name does not say so"):
        opened(renamed)
    second.unlink()


def test_chunks_of_one_part_are_refused(tmp_path: Path) -> None:
    first, *_ = write_parts(tmp_path)
    with pytest.raises(SourceError, match="chunks of one part of 3"):
        opened(cut(first, tmp_path, [400])[0])
