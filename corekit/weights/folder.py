"""A folder as Hugging Face lays it out: config.json, safetensors in one file or in shards, tokenizer files.

Nothing in the folder is ever executed: weights in pickle form are refused, and `auto_map`, by which a configuration
names Python code to import, is dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import SourceError
from .progress import progress_bar
from .safetensors_header import tensor_sizes

if TYPE_CHECKING:
    from torch import Tensor

MAX_JSON_BYTES = 64 << 20
MAX_TOKENIZER_BYTES = 256 << 20
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


class FolderSource:
    """One folder. Invariant: every header was checked when the object was made, and every tensor is in exactly one file."""

    def __init__(self, folder: Path, *, name: str, progress: bool) -> None:
        self._folder = folder
        self._name = name
        self._progress = progress
        self._config = _read_json(folder, "config.json", needed=True)
        code = self._config.pop("auto_map", None)
        if code:
            logging.getLogger(__name__).warning(
                "%s: config.json names Python code to import (auto_map); it is ignored, the model type %r is used", name, self._config.get("model_type")
            )
        self._generation_config = _read_json(folder, "generation_config.json", needed=False)
        self._sizes = {file: tensor_sizes(file) for file in _weight_files(folder, name)}
        self._check_distinct()

    @property
    def name(self) -> str:
        return self._name

    @property
    def format(self) -> str:
        return "safetensors"

    @property
    def config(self) -> Mapping[str, Any]:
        return self._config

    @property
    def generation_config(self) -> Mapping[str, Any]:
        return self._generation_config

    @property
    def tensor_names(self) -> Sequence[str]:
        return tuple(tensor for sizes in self._sizes.values() for tensor in sizes)

    @property
    def num_bytes(self) -> int:
        return sum(sum(sizes.values()) for sizes in self._sizes.values())

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Views of the mapped files."""
        from safetensors import safe_open

        with progress_bar(f"loading {self._name}", self.num_bytes, shown=self._progress) as bar:
            for file, sizes in self._sizes.items():
                with safe_open(file, framework="pt", device="cpu") as opened:
                    for tensor, num_bytes in sizes.items():
                        yield tensor, opened.get_tensor(tensor)
                        bar.update(num_bytes)

    def tokenizer_files(self) -> Mapping[str, bytes]:
        return {name: _read(self._folder / name, MAX_TOKENIZER_BYTES) for name in TOKENIZER_FILES if (self._folder / name).is_file()}

    def _check_distinct(self) -> None:
        owner: dict[str, Path] = {}
        for file, sizes in self._sizes.items():
            for tensor in sizes:
                if tensor in owner:
                    raise SourceError(
                        f"{self._folder}: tensor {tensor!r} is in {owner[tensor].name} and in {file.name}. Likely two models in one folder; keep one."
                    )
                owner[tensor] = file
        if (self._folder / INDEX).is_file():
            missing = sorted(set(_read_json(self._folder, INDEX, needed=True)["weight_map"]) - set(owner))
            if missing:
                raise SourceError(
                    f"{self._folder}: {INDEX} lists {len(missing)} tensors that no file holds, such as {missing[0]!r}. Likely a partial download."
                )


def _weight_files(folder: Path, name: str) -> list[Path]:
    if (folder / INDEX).is_file():
        return _shards(folder)
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise SourceError(
            f"{name}: {len(found)} safetensors files and no {INDEX} that says how they belong together. Likely a partial download; fetch the index."
        )
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise SourceError(
            f"{name}: the weights are in pickle form ({pickles[0]}), which can run any code when it is read, so it is never read. "
            "Use a safetensors version of the model (most have one), or convert it where you trust it."
        )
    raise SourceError(f"{name}: no safetensors file in {folder}. A model's folder holds config.json and *.safetensors; a GGUF file is named by its own path.")


def _shards(folder: Path) -> list[Path]:
    weight_map = _read_json(folder, INDEX, needed=True).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(file, str) for file in weight_map.values()):
        raise SourceError(f"{folder / INDEX}: there is no weight_map from tensors to files. Likely a damaged file; fetch it again.")
    names = sorted(set(weight_map.values()))
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise SourceError(f"{folder / INDEX}: {name!r} is not the name of a safetensors file in this folder. A file made to mislead: do not use it.")
        if not (folder / name).is_file():
            raise SourceError(f"{folder}: {name}, which the index lists, is not there. Likely a partial download; fetch it.")
    return [folder / name for name in names]


def _read_json(folder: Path, name: str, *, needed: bool) -> dict[str, Any]:
    path = folder / name
    if not needed and not path.is_file():
        return {}
    try:
        content = json.loads(_read(path, MAX_JSON_BYTES))
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path}: not JSON: {error}. Likely a broken download; fetch it again.") from error
    if not isinstance(content, dict):
        raise SourceError(f"{path}: not a JSON object. Likely a broken download; fetch it again.")
    return content


def _read(path: Path, limit: int) -> bytes:
    try:
        size = path.stat().st_size
        if size > limit:
            raise SourceError(f"{path}: {size} bytes, at most {limit} are read. Not a file of this kind.")
        return path.read_bytes()
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read: {error.strerror or error}. A model's folder holds config.json and *.safetensors; a GGUF file is named by its own path."
        ) from error
