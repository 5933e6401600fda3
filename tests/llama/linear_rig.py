"""Packed matrices from random or given weights, and what their products are in float64. Knows nothing of how kernels compute."""

from __future__ import annotations

from collections.abc import Sequence

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants

_llama = pytest.importorskip("corekit_llama._llama", reason="corekit was installed without native code")
_pool = pytest.importorskip("corekit.worker._pool", reason="corekit was installed without native code")

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

SETS: list[str] = _pool.instruction_sets()
BLOCK = 32
PANEL = 16
FORMS = {"nibble": "int8", "byte": "int8", "channel": "int8", "bf16": "f32", "f32": "f32"}
"""The form of rows that every instruction set has a product for, by format."""
PLAIN = {"F32": np.float32, "F16": np.float16}
STORED = {"nibble": "Q4_1", "byte": "Q8_0", "channel": "F32", "bf16": "BF16", "f32": "F32"}


def quantize(weights: Floats, type_name: str) -> Bytes:
    packed = quants.quantize(weights, gguf.GGMLQuantizationType[type_name])
    return np.ascontiguousarray(packed).view(np.uint8).reshape(weights.shape[0], -1)


def dequantize(rows: Bytes, type_name: str) -> Floats:
    if type_name in PLAIN:
        return np.ascontiguousarray(rows).view(PLAIN[type_name]).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(quants.dequantize(rows, gguf.GGMLQuantizationType[type_name]), np.float32)


def pack(weights: Floats, format_name: str, *, pool_address: int = 0) -> object:
    type_name = STORED[format_name]
    return _llama.Matrix.pack([(quantize(weights, type_name), type_name)], format_name, pool_address=pool_address)


def pack_pair(gate: Floats, up: Floats, format_name: str) -> object:
    type_name = STORED[format_name]
    return _llama.Matrix.pack([(quantize(part, type_name), type_name) for part in (gate, up)], format_name, interleaved=True)


def multiply(matrix: object, x: Floats, **options: object) -> Floats:
    """A product in new memory, whose every number would show if it were left out or written beside its place."""
    width = matrix.num_outputs // (2 if options.get("kind") == "silu_mul" else 1)  # type: ignore[attr-defined]
    frame = np.full((x.shape[0] + 2, width + 40), 77.0, np.float32)
    to = frame[1:-1, 20:-20]
    added = options.pop("added", None)
    if added is not None:
        to[:] = added
    _llama.multiply(matrix, x, to, **options)
    result = to.copy()
    to[:] = 77.0
    assert np.all(frame == 77.0)
    return result


def prepared(x: Floats, form: str) -> Doubles:
    """The rows as kernels see them: what the form makes of them, exactly."""
    if form == "f32":
        return x.astype(np.float64)
    if form == "bf16":
        return dequantize(quantize(x, "BF16"), "BF16").astype(np.float64)
    blocks = np.zeros((x.shape[0], -(-x.shape[1] // BLOCK), BLOCK), np.float32)
    blocks.reshape(x.shape[0], -1)[:, : x.shape[1]] = x
    most = np.abs(blocks).max(2, keepdims=True)
    with np.errstate(divide="ignore"):
        inverse = np.where(most > 0, np.float32(127) / most, np.float32(0))
    seen = np.rint(blocks * inverse) * (most.astype(np.float64) / 127)
    return np.asarray(seen.reshape(x.shape[0], -1)[:, : x.shape[1]], np.float64)


def expected(matrix: object, x: Floats, form: str) -> tuple[Doubles, Doubles]:
    """The product in float64, and for each number of it an error that float32 sums of any order stay within."""
    weights = matrix.unpack().astype(np.float64)  # type: ignore[attr-defined]
    seen = prepared(x, form)
    magnitude = np.abs(seen) @ np.abs(weights).T
    if form == "int8":  # sums of d q and m, or of q + 128, apart
        magnitude += np.abs(seen) @ np.broadcast_to(np.abs(weights).max(1, keepdims=True), weights.shape).T * 2
    return seen @ weights.T, (weights.shape[1] + 16) * 2.0**-24 * magnitude + 1e-30


def silu_mul(gate: Doubles, up: Doubles) -> Doubles:
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


def random_rows(rng: np.random.Generator, num_rows: int, num_inputs: int) -> Floats:
    """Rows of very different size, some blocks of them zero."""
    rows = rng.standard_normal((num_rows, num_inputs)) * 10.0 ** rng.uniform(-3, 3, (num_rows, 1))
    rows[:, : BLOCK * int(rng.integers(0, 2))] *= rng.integers(0, 2, (num_rows, 1))
    return rows.astype(np.float32)


def pools(counts: Sequence[int] = (1, 2, 3)) -> list[object]:
    return [_pool.Pool(count, 0) for count in counts]
