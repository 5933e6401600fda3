"""Writes a file whole or not at all. Knows nothing of what is in it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import BenchError


def write_whole(path: Path, content: bytes, asked: str) -> None:
    """Written beside its place, then renamed. asked: the option that named it, for the error."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise BenchError(f"{asked} {path}: cannot be written there ({error.strerror}). The folder must exist and be writable.") from None


def check_writable(path: Path, asked: str) -> None:
    """The same error before anything is measured, where it is to be foreseen."""
    if not path.parent.is_dir():
        raise BenchError(f"{asked} {path}: cannot be written there (no such folder). The folder must exist and be writable.")
    if not os.access(path.parent, os.W_OK):
        raise BenchError(f"{asked} {path}: cannot be written there (the folder is not writable). The folder must exist and be writable.")
