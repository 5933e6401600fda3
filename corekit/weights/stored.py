"""The bytes of one file, or of several that follow one another, as one row of bytes. Knows no format."""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .errors import SourceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


SMALL = 1 << 16
"""Bytes that are read instead: with one page of a map the system takes in many around it, and they stay."""


class Take(Protocol):
    """Bytes of mapped files."""

    def __call__(self, offset: int, count: int, *, alone: bool = False) -> npt.NDArray[np.uint8]:
        """`count` bytes from `offset` on. alone: in a map of their own, whose pages leave memory as soon as nobody holds it. Costs a descriptor."""
        ...


class Stored:
    """Files in order. Invariant: `starts[i]` is where file i begins; sizes are those of the moment when the object was made.

    Nothing is ever joined on disk or in memory: a piece that crosses from one file into the next is the only thing copied.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        sizes = [_size(path) for path in self.paths]
        empty = [path.name for path, size in zip(self.paths, sizes, strict=True) if not size]
        if empty and len(sizes) > 1:
            raise SourceError(f"{self}: {empty[0]} is empty. Likely a broken download; fetch it again.")
        self.starts = (0, *accumulate(sizes))

    @property
    def size(self) -> int:
        return self.starts[-1]

    def __str__(self) -> str:
        more = len(self.paths) - 1
        return str(self.paths[0]) + (f" and the {more} chunk{'s' if more > 1 else ''} after it" if more else "")

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset` on; fewer where they end."""
        pieces = []
        for file, start, length in self._pieces(offset, min(count, self.size - offset)):
            with self.paths[file].open("rb") as opened:
                opened.seek(start)
                pieces.append(opened.read(length))
        return b"".join(pieces)

    def map(self) -> Take:
        """Maps every file. Private: what is written to the bytes changes no file."""
        import numpy as np

        arrays = []
        for path, start, end in zip(self.paths, self.starts, self.starts[1:], strict=False):
            if _size(path) != end - start:  # ahead of the map: none can be made of an empty file
                raise SourceError(f"{path}: it had another size when it was opened. Somebody writes to it; wait until that is done and start again.")
            try:
                arrays.append(np.memmap(path, dtype=np.uint8, mode="c", shape=(end - start,)).view(np.ndarray))
            except (OSError, ValueError) as error:  # ValueError: it became shorter just now
                raise SourceError(f"{path}: cannot be mapped: {error}.{_advice(error, len(self.paths))}") from error

        def piece(file: int, start: int, length: int, alone: bool) -> npt.NDArray[np.uint8]:
            if _size(self.paths[file]) < start + length:  # to read what is mapped beyond the end would end the process
                raise SourceError(f"{self.paths[file]}: it became shorter while it was loaded. Somebody writes to it; wait until that is done and start again.")
            if alone:
                with suppress(OSError):  # as many as this process may have; then the one map of the file does
                    return np.memmap(self.paths[file], dtype=np.uint8, mode="c", offset=start, shape=(length,)).view(np.ndarray)
            return arrays[file][start : start + length]

        def take(offset: int, count: int, *, alone: bool = False) -> npt.NDArray[np.uint8]:
            if count < SMALL and len(read := self.read(offset, count)) == count:
                return np.frombuffer(bytearray(read), dtype=np.uint8)
            pieces = [piece(file, start, length, alone) for file, start, length in self._pieces(offset, count)]
            return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

        return take

    def _pieces(self, offset: int, count: int) -> list[tuple[int, int, int]]:
        """(file, where in it, how much) for count bytes from offset on."""
        found, file = [], bisect_right(self.starts, offset) - 1
        while count > 0:
            start = offset - self.starts[file]
            length = min(count, self.starts[file + 1] - offset)
            found.append((file, start, length))
            offset, count, file = offset + length, count - length, file + 1
        return found


def _advice(error: Exception, num_files: int) -> str:
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return f" While a model loads all its files are open, here {num_files} at once. Raise the limit (ulimit -n), or join its chunks."
    return " Check that this user may read it and that nobody writes to it."


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}. Check that it is there and that this user may read it.") from error
