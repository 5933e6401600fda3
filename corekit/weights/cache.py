"""The folder in which fetched models stay. Knows nothing of how they are fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES, EDQUOT, EEXIST, EIO, ELOOP, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS
from pathlib import Path

from .errors import SourceError

OF_FILES = frozenset({EACCES, EDQUOT, EEXIST, EIO, ELOOP, ENAMETOOLONG, ENOSPC, ENOTDIR, EPERM, EROFS})
"""What a file system answers. Errors of the network are OSErrors too."""


@contextmanager
def cache_folder(cache_dir: Path, part: str) -> Iterator[Path]:
    """The folder of one kind of source, made if need be. What the file system refuses inside is a SourceError; other errors pass."""
    folder = cache_dir / part
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
    except OSError as error:
        if error.errno not in OF_FILES:
            raise
        raise SourceError(
            f"cannot write the cache folder {folder}: {error.strerror}. Likely a folder of somebody else, a read-only or a full disk. "
            "Set COREKIT_CACHE to a folder that can be written."
        ) from error
