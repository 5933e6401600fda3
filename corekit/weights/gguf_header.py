"""The header of a GGUF file: metadata and a table of tensors, every number checked against the size of the file.

The `gguf` package's own reader makes one array per string (seconds for a vocabulary) and trusts the counts it reads,
so the header is read here. Knows nothing of models.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from .errors import SourceError
from .gguf_types import type_of
from .stored import Stored

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ARRAY_LENGTH = 1 << 22
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_ALIGNMENT = 1 << 16
MAX_HEADER_BYTES = 256 << 20
"""Metadata and table of tensors; a vocabulary of a quarter of a million tokens takes some ten million."""
WINDOW = 4 << 20
"""Bytes read ahead while a header is walked through."""
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS: Mapping[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One entry of the table: its bytes lie inside the file, whole blocks of one type. `shape` is outermost first."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    type_name: str
    offset: int
    """From the start of the file."""
    num_bytes: int
    file: int = 0
    """In which of a model's files it lies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    end: int
    """Where the file may end: behind its last tensor, filled up to its alignment."""


def read_header(stored: Stored) -> GgufHeader:
    """Raises SourceError for anything that is not a whole, sound GGUF file."""
    try:
        return _Cursor(stored).header()
    except (OSError, ValueError) as error:  # ValueError: text that is not UTF-8
        raise SourceError(f"{stored}: cannot be read as a GGUF file: {error}. Likely a broken or partial download; fetch the file again.") from error


class _Cursor:
    """Walks a header from front to back. Invariant: `at` never passes the end, and no loop runs longer than the bytes that are left allow.

    `view` holds the file's beginning, as far as the header was read yet.
    """

    def __init__(self, stored: Stored) -> None:
        self.stored = stored
        self.view = bytearray()
        self.size = stored.size
        self.at = 0

    def fault(self, what: str) -> SourceError:
        return SourceError(
            f"{self.stored}: not a sound GGUF file: {what} (at byte {self.at} of {self.size}). "
            "Likely a broken or partial download, or a file made to mislead; fetch it again from a source you trust."
        )

    def need(self, count: int, what: str) -> None:
        if count > self.size - self.at:
            raise self.fault(f"{what} needs {count} bytes, {self.size - self.at} are left")
        self.fill(self.at + count)

    def fill(self, end: int) -> int:
        """Have the bytes up to `end`, which the file has, in view; how many are there then."""
        if end > MAX_HEADER_BYTES:
            raise self.fault(f"its header has more than {MAX_HEADER_BYTES} bytes")
        if end > len(self.view):
            self.view += self.stored.read(len(self.view), max(WINDOW, end - len(self.view)))
            if end > len(self.view):
                raise self.fault("it became shorter while it was read")
        return len(self.view)

    def number(self, code: str, what: str) -> Any:
        width = struct.calcsize("<" + code)
        self.need(width, what)
        (value,) = struct.unpack_from("<" + code, self.view, self.at)
        self.at += width
        return value

    def text(self, what: str, limit: int | None = None) -> str:
        length = self.number("Q", what)
        if limit is not None and length > limit:
            raise self.fault(f"{what} has a length of {length}, the limit is {limit}")
        self.need(length, what)
        raw = self.view[self.at : self.at + length]
        self.at += length
        return raw.decode("utf-8", errors="replace") if limit is None else raw.decode("utf-8")

    def header(self) -> GgufHeader:
        self.need(24, "the fixed header")
        if bytes(self.view[:4]) != MAGIC:
            raise self.fault("it does not start with GGUF")
        self.at = 4
        version = self.number("I", "version")
        if version not in VERSIONS:
            hint = "it is big-endian" if version & 0xFFFF == 0 else f"versions {VERSIONS} can be read"
            raise self.fault(f"version {version}; {hint}")
        num_tensors, num_keys = self.number("Q", "tensor count"), self.number("Q", "key count")
        if num_tensors > min(MAX_TENSORS, self.size // 24) or num_keys > self.size // 13:
            raise self.fault(f"{num_tensors} tensors and {num_keys} keys cannot fit")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self.text("a key", MAX_NAME_BYTES)
            if key in metadata:
                raise self.fault(f"key {key!r} appears twice")
            metadata[key] = self.value(self.number("I", key), key)
        alignment = self.alignment(metadata)
        tensors = self.table(num_tensors, alignment)
        end = max((tensor.offset + tensor.num_bytes for tensor in tensors), default=self.at)
        return GgufHeader(metadata=metadata, tensors=tensors, end=-(-end // alignment) * alignment)

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        value = metadata.get("general.alignment", 32)
        if type(value) is not int or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
            raise self.fault(f"general.alignment is {value!r:.60}: not a power of two from 8 to {MAX_ALIGNMENT}")
        return value

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.text(key)
        if kind == ARRAY:
            return self.array(key)
        code = SCALARS.get(kind)
        if code is None:
            raise self.fault(f"key {key!r} has the unknown type {kind}")
        return self.number(code, key)

    def array(self, key: str) -> list[Any]:
        kind, count = self.number("I", key), self.number("Q", key)
        if count > MAX_ARRAY_LENGTH:
            raise self.fault(f"array {key!r} has {count} elements, the limit is {MAX_ARRAY_LENGTH}")
        if kind == STRING:
            self.need(count * 8, f"array {key!r}")
            return self.texts(count, key)
        code = SCALARS.get(kind)
        if code is None:
            raise self.fault(f"array {key!r} has elements of type {kind}, which cannot be read")
        layout = struct.Struct(f"<{count}{code}")
        self.need(layout.size, f"array {key!r}")
        values = list(layout.unpack_from(self.view, self.at))
        self.at += layout.size
        return values

    def texts(self, count: int, key: str) -> list[str]:
        """Strings of a vocabulary: the loop that decides how fast a file opens, hence without a call per element."""
        at, view, unpack, filled = self.at, self.view, struct.Struct("<Q").unpack_from, len(self.view)
        found: list[str] = []
        for _ in range(count):
            if at + 8 > filled:
                if at + 8 > self.size:
                    raise self.fault(f"array {key!r} is cut off")
                filled = self.fill(at + 8)
            end = at + 8 + unpack(view, at)[0]
            if end > filled:
                if end > self.size:
                    raise self.fault(f"a string in array {key!r} passes the end")
                filled = self.fill(end)
            found.append(view[at + 8 : end].decode("utf-8", errors="replace"))
            at = end
        self.at = at
        return found

    def table(self, num_tensors: int, alignment: int) -> tuple[GgufTensor, ...]:
        entries = [self.entry() for _ in range(num_tensors)]
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type_id, offset in entries:
            if name in tensors:
                raise self.fault(f"tensor {name!r} appears twice")
            if offset % alignment:
                raise self.fault(f"tensor {name!r} lies at {offset}, not a multiple of {alignment}")
            tensors[name] = self.tensor(name, shape, type_id, start + offset)
        for one, after in pairwise(sorted(tensors.values(), key=lambda tensor: tensor.offset)):
            if after.offset < one.offset + one.num_bytes:  # a small file could fill the memory
                raise self.fault(f"tensors {one.name!r} and {after.name!r} share bytes")
        return tuple(tensors.values())

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text("a tensor's name", MAX_NAME_BYTES)
        num_dimensions = self.number("I", name)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise self.fault(f"tensor {name!r} has {num_dimensions} dimensions, 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self.number("Q", name) for _ in range(num_dimensions))[::-1]
        return name, shape, self.number("I", name), self.number("Q", name)

    def tensor(self, name: str, shape: tuple[int, ...], type_id: int, offset: int) -> GgufTensor:
        kind = type_of(type_id)
        if kind is None:
            raise self.fault(f"tensor {name!r} has the unknown type {type_id}")
        block, block_bytes = kind.block, kind.block_bytes
        if any(size < 1 for size in shape) or shape[-1] % block:
            raise self.fault(f"tensor {name!r} has the shape {shape}, which {kind.name} blocks of {block} cannot fill")
        num_bytes = prod(shape) // block * block_bytes
        if offset + num_bytes > self.size:
            raise self.fault(f"tensor {name!r} of shape {shape} ends at byte {offset + num_bytes}, past the end of the file")
        return GgufTensor(name=name, shape=shape, type_id=type_id, type_name=kind.name, offset=offset, num_bytes=num_bytes)
