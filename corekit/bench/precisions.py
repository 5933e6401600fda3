"""Names for sets of configuration values that differ in precision. Knows dotted keys; nothing of what they do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .errors import BenchUsage

REFERENCE = "float32"
"""What every other precision is compared with."""
PRECISIONS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        REFERENCE: {"model.dtype": "float32", "model.quantization": "none", "block_allocator.kv_dtype": "float32"},
        "bfloat16": {"model.dtype": "bfloat16", "model.quantization": "none", "block_allocator.kv_dtype": "bfloat16"},
        "stored": {"model.dtype": "auto", "model.quantization": "stored", "block_allocator.kv_dtype": "auto"},
        "int8": {"model.dtype": "auto", "model.quantization": "int8", "block_allocator.kv_dtype": "auto"},
        "configured": {},
    }
)
"""stored: weights in the formats of their file. configured: as the file and the options say."""
USUAL = (REFERENCE, "bfloat16", "stored", "int8")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}")
_NEXT = re.compile(r",(?=\s*[A-Za-z_]\w*(?:\.[\w-]+)+\s*=)")
"""A comma before another key; others belong to a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    name: str
    settings: Mapping[str, Any]
    """Configuration values by dotted key."""
    asked_for: bool
    """By name; a usual one that nobody named may be missing in silence."""


def chosen(names: Sequence[str], variants: Sequence[str]) -> list[Precision]:
    """The named ones and the variants (`NAME=key=value,key=value`); the usual ones where nothing is named. Raises BenchUsage."""
    found = [Precision(name=name, settings=PRECISIONS[name], asked_for=True) for name in dict.fromkeys(names)] + [_variant(text) for text in variants]
    if not found:
        return [Precision(name=name, settings=PRECISIONS[name], asked_for=False) for name in USUAL]
    known = [one.name for one in found]
    for name in known:
        if known.count(name) > 1:
            raise BenchUsage(f"--variant {name}: there are two of that name, by which their figures are told apart. Rename one.")
    return found


def reference() -> Precision:
    return Precision(name=REFERENCE, settings=PRECISIONS[REFERENCE], asked_for=True)


def _variant(text: str) -> Precision:
    from corekit.compose.tree import parse_value

    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise BenchUsage(f"--variant {text}: must be NAME=table.key=value, with more of them after commas, as in half=model.dtype=float16")
    if name in PRECISIONS:
        raise BenchUsage(f"--variant {name}: is the name of a known precision, which --precision {name} measures. Take another name.")
    settings: dict[str, Any] = {}
    for setting in _NEXT.split(rest):
        key, equals, value = setting.partition("=")
        if not equals or len(key.split(".")) < 2 or not all(key.strip().split(".")):
            raise BenchUsage(f"--variant {name}: {setting!r}: must be table.key=value, as in model.dtype=float16")
        settings[key.strip()] = parse_value(value.strip())
    return Precision(name=name, settings=settings, asked_for=True)
