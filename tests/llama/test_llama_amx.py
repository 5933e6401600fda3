"""Products by tiles of AMX, on any processor: every instruction set without them runs the same text on an emulation."""

from __future__ import annotations

import numpy as np
import pytest
from linear_rig import SETS, STORED, Doubles, multiply, pack, pack_pair, prepared, silu_mul

TILED = [name for name in STORED if name != "f32"]
FORMATS = pytest.mark.parametrize("format_name", TILED)

# Outputs, inputs, rows: whole and ragged panels and tiles, odd and even numbers of them; few rows and many, whose weights are expanded another way.
SHAPES = [(16, 32, 16), (40, 96, 17), (7, 64, 1), (100, 160, 33), (64, 64, 32), (48, 352, 70)]


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(5)


def as_bf16(weights: Doubles) -> Doubles:
    """To the nearest, ties away from zero."""
    bits = weights.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def expected(matrix: object, x: np.ndarray) -> tuple[Doubles, Doubles]:
    """The product in float64, and what float32 sums may differ from it. A channel's whole numbers are exact in bfloat16."""
    weights = matrix.unpack().astype(np.float64)  # type: ignore[attr-defined]
    if matrix.format != "channel":  # type: ignore[attr-defined]
        weights = as_bf16(weights)
    rows = prepared(x, "bf16")
    return rows @ weights.T, (x.shape[1] + 16) * 2.0**-24 * (np.abs(rows) @ np.abs(weights).T)


@FORMATS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_float64(random: np.random.Generator, format_name: str, shape: tuple[int, int, int]) -> None:
    num_outputs, num_inputs, num_rows = shape
    matrix = pack(random.standard_normal((num_outputs, num_inputs), np.float32), format_name)
    x = random.standard_normal((num_rows, num_inputs), np.float32)
    bias, before = random.standard_normal(num_outputs, np.float32), random.standard_normal((num_rows, num_outputs), np.float32)
    product, error = expected(matrix, x)
    error += 1e-6 * (np.abs(product) + np.abs(bias) + np.abs(before))
    name = SETS[SHAPES.index(shape) % len(SETS)]
    assert np.all(np.abs(multiply(matrix, x, by_amx=True, instruction_set=name) - product) <= error)
    assert np.all(np.abs(multiply(matrix, x, by_amx=True, instruction_set=name, bias=bias) - (product + bias)) <= error)
    added = multiply(matrix, x, by_amx=True, instruction_set=name, kind="add", added=before, bias=bias)
    assert np.all(np.abs(added - (product + bias + before)) <= error)


@pytest.mark.parametrize("format_name", ["channel", "bf16"])
def test_inputs_need_not_fill_blocks(random: np.random.Generator, format_name: str) -> None:
    matrix = pack(random.standard_normal((20, 45), np.float32), format_name)
    x = random.standard_normal((18, 45), np.float32)
    product, error = expected(matrix, x)
    assert np.all(np.abs(multiply(matrix, x, by_amx=True) - product) <= error + 1e-6 * np.abs(product))


@FORMATS
@pytest.mark.parametrize("num_rows", [16, 40])
def test_gate_and_up(random: np.random.Generator, format_name: str, num_rows: int) -> None:
    matrix = pack_pair(random.standard_normal((40, 96), np.float32), random.standard_normal((40, 96), np.float32), format_name)
    x = random.standard_normal((num_rows, 96), np.float32) / 8
    both = expected(matrix, x)[0].reshape(num_rows, -1, 2, 16)
    wanted = silu_mul(both[:, :, 0].reshape(num_rows, -1), both[:, :, 1].reshape(num_rows, -1))
    np.testing.assert_allclose(multiply(matrix, x, by_amx=True, kind="silu_mul"), wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


@FORMATS
def test_instruction_sets_agree_to_the_bit(random: np.random.Generator, format_name: str) -> None:
    matrix = pack(random.standard_normal((40, 96), np.float32), format_name)
    x = random.standard_normal((35, 96), np.float32)
    first, *others = (multiply(matrix, x, by_amx=True, instruction_set=name) for name in SETS)
    assert all(np.array_equal(first, other) for other in others)


@FORMATS
def test_a_row_does_not_depend_on_its_neighbours(random: np.random.Generator, format_name: str) -> None:
    """However many they are, and whatever is in them."""
    matrix = pack(random.standard_normal((40, 96), np.float32), format_name)
    x = random.standard_normal((70, 96), np.float32)
    alone = multiply(matrix, x[20:21], by_amx=True)
    x[19, 3], x[21, 5] = np.nan, np.inf
    assert np.array_equal(alone, multiply(matrix, x, by_amx=True)[20:21])
    assert np.array_equal(alone, multiply(matrix, x[5:37], by_amx=True)[15:16])


def test_many_rows_come_in_groups(random: np.random.Generator) -> None:
    """A group is what the second cache holds: with so many inputs 64 rows."""
    matrix = pack(random.standard_normal((16, 8192), np.float32), "nibble")
    x = random.standard_normal((81, 8192), np.float32)
    product, error = expected(matrix, x)
    assert np.all(np.abs(multiply(matrix, x, by_amx=True) - product) <= error)


def test_float32_weights_have_no_tiles(random: np.random.Generator) -> None:
    matrix = pack(random.standard_normal((16, 32), np.float32), "f32")
    with pytest.raises(ValueError, match="f32 weights have no product with rows in bf16"):
        multiply(matrix, np.zeros((16, 32), np.float32), by_amx=True)
