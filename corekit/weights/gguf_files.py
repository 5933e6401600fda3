"""The files of one GGUF model: a whole file, one cut into chunks of bytes, or parts that are each a GGUF file of their own.

Parts are named NAME-00001-of-0000N.gguf and say their number, their count and how many tensors all of them hold in their
metadata (`split.*`, as gguf-split writes them). Knows how files belong together; neither what is in a tensor nor its name's meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .errors import SourceError
from .gguf_header import GgufHeader, GgufTensor, read_header
from .stored import Stored

PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_PARTS = 1000
MAX_NAMED = 8
"""Missing parts named in one error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFiles:
    """Headers of all files, checked. `metadata` is the first file's; a tensor says by `file` in which of `stored` it lies."""

    stored: tuple[Stored, ...]
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_files(first: Stored, where: str) -> GgufFiles:
    """Raises SourceError, naming the file, for parts or chunks that do not belong together. Reads no tensors."""
    header = read_header(first)
    if len(first.paths) > 1 and first.size > header.end:
        raise SourceError(
            f"{where}: the chunks together have {first.size} bytes, and the last tensor ends at byte {header.end}. "
            "Likely a chunk that is named twice or belongs to another file; name each chunk once, in order."
        )
    if header.metadata.get("split.count", 0) in (0, 1):
        return GgufFiles(stored=(first,), metadata=header.metadata, tensors=header.tensors)
    count = _count(header, first, where)
    stored = (first, *map(_one, _other_parts(first.paths[0], count, where)))
    headers = (header, *(read_header(part) for part in stored[1:]))
    for number, (part, found) in enumerate(zip(stored, headers, strict=True)):
        _check_part(part, found, number, count)
    tensors = _distinct(stored, headers)
    wanted = header.metadata.get("split.tensors.count", len(tensors))
    if wanted != len(tensors):
        raise SourceError(
            f"{where}: its {count} parts hold {len(tensors)} tensors, and split.tensors.count says {wanted!r:.60}. "
            "Likely a part of another model or version; fetch all parts again."
        )
    return GgufFiles(stored=stored, metadata=header.metadata, tensors=tensors)


def is_later_part(path: Path) -> bool:
    """By its name a part that the first one leads to."""
    found = PART.fullmatch(path.name)
    return found is not None and int(found[2]) > 1


def _one(path: Path) -> Stored:
    return Stored((path,))


def _count(header: GgufHeader, first: Stored, where: str) -> int:
    count = header.metadata["split.count"]
    if type(count) is not int or not 2 <= count <= MAX_PARTS:
        raise SourceError(f"{where}: split.count is {count!r:.60}; a whole number from 2 to {MAX_PARTS} is needed. The file is damaged, or made to mislead.")
    if len(first.paths) > 1:
        raise SourceError(f"{where}: chunks of one part of {count}. Join the chunks of each part, and name the first part.")
    return count


def _other_parts(first: Path, count: int, where: str) -> Sequence[Path]:
    """Parts 2 .. count, which lie beside the first. Raises SourceError when it is not named like one, or when some are missing."""
    found = PART.fullmatch(first.name)
    if found is None or int(found[3]) != count:
        raise SourceError(
            f"{where}: this is one part of {count}, and its name does not say so: parts are found by names such as NAME-00001-of-{count:05}.gguf. "
            "Give all parts the names that they were published under, and name the first."
        )
    if int(found[2]) != 1:
        raise SourceError(f"{where}: this is part {int(found[2])} of {count}. Name the first: {found[1]}-00001-of-{found[3]}.gguf.")
    others = [first.with_name(f"{found[1]}-{number:05}-of-{found[3]}.gguf") for number in range(2, count + 1)]
    missing = [path.name for path in others if not path.is_file()]
    if missing:
        more = f" and {len(missing) - MAX_NAMED} more" if len(missing) > MAX_NAMED else ""
        raise SourceError(
            f"{where}: {len(missing)} of its {count} parts are not in {first.parent}: {', '.join(missing[:MAX_NAMED])}{more}. "
            "Likely a partial download; fetch them into the same folder."
        )
    return others


def _check_part(part: Stored, header: GgufHeader, number: int, count: int) -> None:
    no, of = header.metadata.get("split.no"), header.metadata.get("split.count")
    if (no, of) != (number, count):
        told = f"part {no + 1} of {of}" if type(no) is int and type(of) is int else "no part of anything"
        raise SourceError(
            f"{part}: part {number + 1} of {count} is wanted, and by its own metadata the file is {told}. "
            "Likely files that were renamed or belong to another model; fetch all parts again."
        )


def _distinct(stored: Sequence[Stored], headers: Sequence[GgufHeader]) -> tuple[GgufTensor, ...]:
    owner: dict[str, int] = {}
    for file, header in enumerate(headers):
        for tensor in header.tensors:
            if tensor.name in owner:
                raise SourceError(
                    f"{stored[file]}: tensor {tensor.name!r} is in {stored[owner[tensor.name]].paths[0].name} already. "
                    "Likely parts of two models or versions; fetch all parts again."
                )
            owner[tensor.name] = file
    return tuple(replace(tensor, file=file) for file, header in enumerate(headers) for tensor in header.tensors)
