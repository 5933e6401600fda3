"""The header of a safetensors file, every number checked against the size of the file, before any library maps it.

Format: https://github.com/huggingface/safetensors#format. Knows nothing of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from .errors import SourceError

MAX_HEADER_BYTES = 100_000_000
NAMES_BY_BITS = (
    (8, ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2")),
    (16, ("I16", "U16", "F16", "BF16")),
    (32, ("I32", "U32", "F32")),
    (64, ("I64", "U64", "F64")),
)
BITS: Mapping[str, int] = {name: bits for bits, names in NAMES_BY_BITS for name in names}


def tensor_sizes(path: Path) -> dict[str, int]:
    """Tensor name to its bytes. Raises SourceError for anything that is not a whole, sound safetensors file."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                raise _fault(path, f"the header claims {length} bytes, the file has {size}")
            header = json.loads(file.read(length))
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise _fault(path, f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _fault(path, "the header is not an object")
    header.pop("__metadata__", None)
    spans = sorted((*_span(path, name, entry), name) for name, entry in header.items())
    at = 0
    for start, end, name in spans:
        if start != at:
            raise _fault(path, f"tensor {name!r} starts at {start}, the one before it ends at {at}")
        at = end
    if at != size - 8 - length:
        raise _fault(path, f"the tensors need {at} bytes, {size - 8 - length} are there")
    return {name: end - start for start, end, name in spans}


def _span(path: Path, name: str, entry: Any) -> tuple[int, int]:
    if not isinstance(entry, Mapping):
        raise _fault(path, f"tensor {name!r} is described by {type(entry).__name__}")
    kind, shape, span = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in BITS:
        raise SourceError(f"{path}: tensor {name!r} has the type {kind!r}, which cannot be read. Known: {', '.join(BITS)}.")
    if not _naturals(shape) or not _naturals(span) or len(span) != 2:
        raise _fault(path, f"tensor {name!r} has the shape {shape!r} and lies at {span!r}")
    if span[1] - span[0] != prod(shape) * BITS[kind] // 8:
        raise _fault(path, f"tensor {name!r} of shape {shape} and type {kind} lies at {span}")
    return span[0], span[1]


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) <= 16 and all(type(number) is int and 0 <= number < 1 << 63 for number in value)


def _fault(path: Path, what: str) -> SourceError:
    return SourceError(f"{path}: not a sound safetensors file: {what}. Likely a broken or partial download; fetch the file again.")
