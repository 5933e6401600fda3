"""What native functions refuse: a wrong shape, stride, type, name or address is an error that says so, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from linear_rig import _llama, pack, pack_pair, quantize

Q4_1 = np.zeros((4, 40), np.uint8)


@pytest.mark.parametrize(
    ("parts", "format_name", "options", "message"),
    [
        ([], "nibble", {}, "no parts|0 outputs|at least one"),
        ([(Q4_1, "Q4_1")], "nybble", {}, "format is"),
        ([(Q4_1, "Q5_K")], "nibble", {}, "there are Q4_0"),
        ([(Q4_1, "Q8_0")], "byte", {}, "multiple of 34"),
        ([(np.zeros((4, 34), np.uint8), "Q8_0")], "nibble", {}, "cannot be packed as nibble"),
        ([(np.zeros((4, 64), np.uint8), "BF16")], "byte", {}, "cannot be packed as byte"),
        ([(np.zeros((4, 30), np.uint8), "F32")], "f32", {}, "multiple of 4"),
        ([(np.zeros((0, 40), np.uint8), "Q4_1")], "nibble", {}, "neither of them 0"),
        ([(np.zeros((4, 0), np.uint8), "Q4_1")], "nibble", {}, "neither of them 0"),
        ([(np.zeros(40, np.uint8), "Q4_1")], "nibble", {}, "two dimensions"),
        ([(np.zeros((4, 40), np.int8), "Q4_1")], "nibble", {}, "uint8"),
        ([(np.zeros((4, 80), np.uint8)[:, ::2], "Q4_1")], "nibble", {}, "strides"),
        ([(np.zeros((40, 4), np.uint8).T, "Q4_1")], "nibble", {}, "strides"),
        ([(Q4_1[::-1], "Q4_1")], "nibble", {}, "strides"),
        ([(np.broadcast_to(Q4_1[:1], (4, 40)), "Q4_1")], "nibble", {}, "strides"),
        ([(Q4_1, "Q4_1"), (np.zeros((4, 20), np.uint8), "Q4_1")], "nibble", {}, "64 and 32 inputs"),
        ([(Q4_1, "Q4_1")], "nibble", {"interleaved": True}, "interleaved"),
        ([(Q4_1, "Q4_1"), (Q4_1[:3], "Q4_1")], "nibble", {"interleaved": True}, "interleaved"),
        ([(Q4_1, "Q4_1")], "nibble", {"pool_address": 3}, "misaligned"),
        ([(Q4_1, "Q4_1")], "nibble", {"pool_address": -1}, None),
    ],
)
def test_pack_refuses(parts: Any, format_name: str, options: dict[str, Any], message: str | None) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        _llama.Matrix.pack(parts, format_name, **options)


def test_pack_refuses_another_version_of_the_pool() -> None:
    strange = np.array([99, 2, 0, 0], np.uint64)
    with pytest.raises(ValueError, match="version 99"):
        _llama.Matrix.pack([(Q4_1, "Q4_1")], "nibble", pool_address=strange.ctypes.data)


def misaligned(rows: int, columns: int) -> np.ndarray:
    return np.zeros(rows * columns * 4 + 1, np.uint8)[1:].view(np.float32).reshape(rows, columns)


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


X, TO = np.zeros((3, 64), np.float32), np.zeros((3, 20), np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.zeros((3, 63), np.float32)}, "64 inputs"),
        ({"x": np.zeros((0, 64), np.float32)}, "neither of them 0"),
        ({"x": np.zeros(64, np.float32)}, "two dimensions"),
        ({"x": np.zeros((3, 64), np.float64)}, "float32"),
        ({"x": np.zeros((3, 128), np.float32)[:, ::2]}, "strides"),
        ({"x": np.zeros((3, 64), np.float32)[::-1]}, "strides"),
        ({"x": misaligned(3, 64)}, "misaligned"),
        ({"x": None}, None),
        ({"matrix": None}, None),
        ({"to": np.zeros((3, 21), np.float32)}, r"wanted is \[3, 20\]"),
        ({"to": np.zeros((2, 20), np.float32)}, r"wanted is \[3, 20\]"),
        ({"to": np.zeros((3, 20), np.int32)}, "float32"),
        ({"to": np.zeros((20, 3), np.float32).T}, "strides"),
        ({"to": np.zeros((3, 40), np.float32)[:, ::2]}, "strides"),
        ({"to": misaligned(3, 20)}, "misaligned"),
        ({"to": read_only(np.zeros((3, 20), np.float32))}, "read-only"),
        ({"to": np.broadcast_to(np.zeros(20, np.float32), (3, 20))}, "strides|read-only"),
        ({"kind": "subtract"}, "store, add, silu_mul"),
        ({"kind": "silu_mul", "to": np.zeros((3, 10), np.float32)}, "interleaved"),
        ({"bias": np.zeros(19, np.float32)}, r"wanted is \[20\]"),
        ({"bias": np.zeros((1, 20), np.float32)}, r"wanted is \[20\]"),
        ({"bias": np.zeros(20, np.float64)}, "float32"),
        ({"bias": np.zeros(40, np.float32)[::2]}, "without gaps"),
        ({"bias": misaligned(1, 20)[0]}, "misaligned"),
        ({"instruction_set": "sse9"}, "this processor runs auto, portable"),
        ({"prepared": "f32"}, "no product"),
        ({"prepared": "fp4"}, "int8, bf16, f32"),
        ({"pool_address": 2}, "misaligned"),
    ],
)
def test_multiply_refuses(changes: dict[str, Any], message: str | None) -> None:
    given: dict[str, Any] = {"matrix": pack(np.ones((20, 64), np.float32), "nibble"), "x": X, "to": TO, **changes}
    with pytest.raises((ValueError, TypeError), match=message):
        _llama.multiply(given.pop("matrix"), given.pop("x"), given.pop("to"), **given)


def test_a_product_of_gates_takes_no_bias() -> None:
    pair = pack_pair(np.ones((16, 32), np.float32), np.ones((16, 32), np.float32), "byte")
    with pytest.raises(ValueError, match="without bias"):
        _llama.multiply(pair, np.zeros((1, 32), np.float32), np.zeros((1, 16), np.float32), kind="silu_mul", bias=np.zeros(32, np.float32))


def test_a_matrix_outlives_what_it_was_made_of() -> None:
    rows = quantize(np.ones((20, 64), np.float32), "Q8_0")
    matrix = _llama.Matrix.pack([(rows, "Q8_0")], "byte")
    rows[:] = 0
    assert np.all(matrix.unpack() != 0)
