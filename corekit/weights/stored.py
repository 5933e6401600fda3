"""The bytes of one file, or of several that follow one another, as one row of bytes. Knows no format."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import SourceError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Take = Callable[[int, int], npt.NDArray[np.uint8]]


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
        """(offset, count) -> those bytes, mapped from the file that holds them. Private: what is written to them changes no file."""
        import numpy as np

        arrays = [np.memmap(path, dtype=np.uint8, mode="c").view(np.ndarray) for path in self.paths]
        sizes = [end - start for start, end in zip(self.starts, self.starts[1:], strict=False)]
        changed = [path for path, array, size in zip(self.paths, arrays, sizes, strict=True) if array.size != size]
        if changed:
            raise SourceError(f"{changed[0]}: it had another size when it was opened. Somebody writes to it; wait until that is done and start again.")

        def take(offset: int, count: int) -> npt.NDArray[np.uint8]:
            pieces = [arrays[file][start : start + length] for file, start, length in self._pieces(offset, count)]
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror or error}. Check that it is there and that this user may read it.") from error
