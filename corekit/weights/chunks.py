"""One file that was cut into chunks of bytes: how the chunks are named and found, and in which order they follow. Knows no format.

Either the user names every chunk, in order and joined by " + ", or the first of a row of files in one folder whose names
count: NAME.gguf.part1, NAME.gguf.part2 ..., NAME.gguf.001 ..., NAME.gguf-part-1-of-3 ... or NAME.gguf.part1of3 ....
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

from .errors import SourceError
from .stored import Stored

JOINT = " + "
NUMBERED = re.compile(r"(?P<stem>.+\.gguf[.-]?(?:part|split|chunk)?[.-]?)(?P<number>\d{1,5})(?P<rest>(?:-?of-?(?P<count>\d{1,5}))?)")
OF = re.compile(r"-?of-?\d{1,5}(?=\D*$)")
LAST_NUMBER = re.compile(r"\d{1,9}(?=\D*$)")
MAX_CHUNKS = 1000


def named_chunks(source: str, find: Callable[[str], Path], label: Callable[[str], str]) -> Stored:
    """The chunks of "A + B + C". `find`: what the user wrote -> its file; `label`: what of it may count the chunks."""
    written = [part.strip() for part in source.split(JOINT)]
    if len(written) > MAX_CHUNKS or not all(written):
        raise SourceError(f"{source[:200]!r}: 2 to {MAX_CHUNKS} chunks are named in order, joined by {JOINT!r}; here are {len(written)}, or one has no name.")
    twice = next((part for at, part in enumerate(written) if part in written[:at]), None)
    if twice is not None:
        raise SourceError(f"{source}: {twice} is named twice. Name each chunk once, in order.")
    _check_order(source, [label(part) for part in written])
    paths = [find(part) for part in written]
    _check_distinct(source, paths)
    return Stored(paths)


def numbered_chunks(first: Path) -> Stored | None:
    """The row of files that begins with this one; None for a name that does not count."""
    found = NUMBERED.fullmatch(first.name)
    if found is None:
        return None
    stem, start, rest, width = found["stem"], int(found["number"]), found["rest"], len(found["number"])

    def chunk(number: int) -> Path:
        return first.with_name(f"{stem}{number:0{width}}{rest}")

    if start > 1 or (start == 1 and chunk(0).is_file()):
        raise SourceError(
            f"{first}: this is not the first chunk. Name the first: {chunk(0 if chunk(0).is_file() else 1).name}; the others are found by their names."
        )
    if found["count"] is not None:
        total = int(found["count"])
        if not 1 <= total <= MAX_CHUNKS:
            raise SourceError(f"{first}: by its name it is one of {total} chunks; 1 to {MAX_CHUNKS} are read. The name is wrong, or made to mislead.")
        paths = [chunk(number) for number in range(start, start + total)]
    else:
        paths = [chunk(number) for number in range(start, next(number for number in count(start) if not chunk(number).is_file()))]
        if len(paths) > MAX_CHUNKS:
            raise SourceError(f"{first}: {len(paths)} chunks follow one another; at most {MAX_CHUNKS} are read. Cut the file into larger ones.")
        paths += _beyond(first, stem, rest, start + len(paths), chunk)
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise SourceError(f"{first}: chunk {missing[0]} is not in {first.parent}. Likely a partial download; fetch it into the same folder.")
    _check_distinct(str(first), paths)
    return Stored(paths)


def _check_distinct(source: str, paths: Sequence[Path]) -> None:
    """A file that stands for two chunks of equal size, as a link can, shows in nothing else but wrong answers."""
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        found = path.stat()
        other = seen.setdefault((found.st_dev, found.st_ino), path)
        if other is not path:
            raise SourceError(f"{source}: {other} is named twice, under different names: {path.name} is the same file. Each chunk is a file of its own.")


def _beyond(first: Path, stem: str, rest: str, end: int, chunk: Callable[[int], Path]) -> list[Path]:
    """Chunks after a gap at `end`, the gap included: a row that goes on is not complete without it."""
    later = (NUMBERED.fullmatch(path.name) for path in first.parent.iterdir())
    known = any(found and found["stem"] == stem and found["rest"] == rest and int(found["number"]) > end for found in later)
    return [chunk(end)] if known else []


def _check_order(source: str, labels: Sequence[str]) -> None:
    """Names that differ in one number are held to it: a swapped pair of equal size shows in nothing else but wrong answers."""
    bare = [OF.sub("", label) for label in labels]
    numbers = [found and int(found[0]) for found in map(LAST_NUMBER.search, bare)]
    if len({LAST_NUMBER.sub("#", label) for label in bare}) > 1 or None in numbers:
        return
    first = numbers[0] or 0
    if numbers != list(range(first, first + len(numbers))):
        raise SourceError(f"{source}: by their names these are chunks {', '.join(map(str, numbers))}, in this order. Name all of them, first to last.")
