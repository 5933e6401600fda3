"""What packed weights are: those of the file, to the bit, or what a format's definition makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from linear_rig import BLOCK, PANEL, Bytes, Floats, _llama, dequantize, pools, quantize

BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}
LARGEST_SCALE = {"Q4_0": 8192, "Q4_1": 65536, "Q8_0": 512}
EXACT = [("Q4_0", "nibble"), ("Q4_1", "nibble"), ("Q4_0", "byte"), ("Q4_1", "byte"), ("Q8_0", "byte")]
SEEDS = st.integers(0, 2**32 - 1)
FEW = settings(max_examples=10, deadline=None)


def any_halves(rng: np.random.Generator, count: int, limit: float) -> np.ndarray:
    """Of any finite value below the limit, many of them subnormal."""
    bits = rng.integers(0, 0x7C00, count, np.uint16)
    bits[rng.random(count) < 0.3] &= 0x03FF
    bits[np.abs(bits.view(np.float16).astype(np.float32)) >= limit] = 0x0001
    return bits | (rng.integers(0, 2, count, np.uint16) << 15)


def any_blocks(rng: np.random.Generator, type_name: str, num_rows: int, num_blocks: int) -> Bytes:
    """Bytes of any content in the layout of a type, with scales that are numbers."""
    size = BLOCK_BYTES[type_name]
    blocks = rng.integers(0, 256, (num_rows * num_blocks, size), np.uint8)
    blocks[:, :2] = any_halves(rng, len(blocks), LARGEST_SCALE[type_name]).view(np.uint8).reshape(-1, 2)
    if type_name == "Q4_1":
        blocks[:, 2:4] = any_halves(rng, len(blocks), 65536).view(np.uint8).reshape(-1, 2)
    if type_name == "Q8_0":
        blocks[::3, 5] = 128  # -128
    return blocks.reshape(num_rows, -1)


@pytest.mark.parametrize(("type_name", "format_name"), EXACT)
@FEW
@given(seed=SEEDS, num_rows=st.integers(1, 40), num_blocks=st.integers(1, 35))
def test_blocks_of_any_bytes_are_those_of_gguf(type_name: str, format_name: str, seed: int, num_rows: int, num_blocks: int) -> None:
    rows = any_blocks(np.random.default_rng(seed), type_name, num_rows, num_blocks)
    matrix = _llama.Matrix.pack([(rows, type_name)], format_name)
    assert (matrix.format, matrix.num_outputs, matrix.num_inputs) == (format_name, num_rows, num_blocks * BLOCK)
    assert np.array_equal(matrix.unpack(), dequantize(rows, type_name))


@FEW
@given(seed=SEEDS, num_rows=st.integers(1, 40), num_inputs=st.integers(1, 100), type_name=st.sampled_from(["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0"]))
def test_any_type_packs_as_floats_and_rounds_to_bf16(seed: int, num_rows: int, num_inputs: int, type_name: str) -> None:
    rng = np.random.default_rng(seed)
    if type_name in BLOCK_BYTES:
        rows = any_blocks(rng, type_name, num_rows, num_inputs // BLOCK + 1)
    else:
        size = 4 if type_name == "F32" else 2
        rows = rng.integers(0, 256, (num_rows, num_inputs * size), np.uint8)
        rows[:, size - 1 :: size] &= 0xBB  # no infinities, nor anything that is no number
    weights = dequantize(rows, type_name)
    assert np.array_equal(_llama.Matrix.pack([(rows, type_name)], "f32").unpack(), weights)
    rounded = dequantize(quantize(weights, "BF16"), "BF16")
    assert np.array_equal(_llama.Matrix.pack([(rows, type_name)], "bf16").unpack(), rounded)


def channel_errors(weights: Floats, unpacked: Floats) -> Floats:
    """In units of each output's scale."""
    scales = np.abs(weights).max(1, keepdims=True) / 127
    return np.abs(unpacked - weights) / np.where(scales > 0, scales, 1)


@FEW
@given(seed=SEEDS, num_rows=st.integers(1, 40), num_inputs=st.integers(1, 100), type_name=st.sampled_from(["F32", "F16", "BF16"]))
def test_channels_keep_the_largest_weight_and_round_the_others(seed: int, num_rows: int, num_inputs: int, type_name: str) -> None:
    rng = np.random.default_rng(seed)
    weights = (rng.standard_normal((num_rows, num_inputs)) * 10.0 ** rng.uniform(-3, 3, (num_rows, 1))).astype(np.float32)
    weights[rng.random(num_rows) < 0.1] = 0
    rows = quantize(weights, type_name)
    weights = dequantize(rows, type_name)
    unpacked = _llama.Matrix.pack([(rows, type_name)], "channel").unpack()
    assert np.all(channel_errors(weights, unpacked) <= 0.5 + 1e-4)
    assert np.allclose(np.abs(unpacked).max(1), np.abs(weights).max(1), rtol=1e-6)


def test_channels_of_blocks_are_those_of_their_floats() -> None:
    rng = np.random.default_rng(1)
    for type_name in BLOCK_BYTES:
        rows = quantize(rng.standard_normal((20, 96), np.float32), type_name)
        weights = np.ascontiguousarray(dequantize(rows, type_name))
        direct = _llama.Matrix.pack([(rows, type_name)], "channel").unpack()
        assert np.array_equal(direct, _llama.Matrix.pack([(weights.view(np.uint8), "F32")], "channel").unpack())


def test_a_channel_without_numbers_is_none() -> None:
    weights = np.ones((3, 40), np.float32)
    weights[0, 3], weights[2, 39] = np.nan, np.inf
    unpacked = _llama.Matrix.pack([(weights.view(np.uint8), "F32")], "channel").unpack()
    assert np.isnan(unpacked[[0, 2]]).all()
    assert np.allclose(unpacked[1], 1)


def test_parts_lie_one_after_the_other() -> None:
    """Of different types in one matrix, as mixed files have them, and with ends within a panel."""
    rng = np.random.default_rng(2)
    parts = [(any_blocks(rng, name, count, 3), name) for name, count in (("Q4_1", 5), ("Q8_0", 30), ("Q4_0", 1), ("Q8_0", 9))]
    matrix = _llama.Matrix.pack(parts, "byte")
    assert np.array_equal(matrix.unpack(), np.concatenate([dequantize(rows, name) for rows, name in parts]))


@pytest.mark.parametrize("num_rows", [1, 16, 21])
def test_interleaved_parts_alternate_panel_by_panel(num_rows: int) -> None:
    rng = np.random.default_rng(3)
    gate, up = (any_blocks(rng, "Q4_1", num_rows, 2) for _ in range(2))
    unpacked = _llama.Matrix.pack([(gate, "Q4_1"), (up, "Q4_1")], "nibble", interleaved=True).unpack()
    num_panels = -(-num_rows // PANEL)
    panels = unpacked.reshape(num_panels, 2, PANEL, 2 * BLOCK)
    for at, rows in enumerate((gate, up)):
        found = panels[:, at].reshape(num_panels * PANEL, -1)
        assert np.array_equal(found[:num_rows], dequantize(rows, "Q4_1"))
        assert np.all(found[num_rows:] == 0)


def test_threads_pack_the_same() -> None:
    rng = np.random.default_rng(4)
    rows = any_blocks(rng, "Q4_1", 100, 5)
    alone = _llama.Matrix.pack([(rows, "Q4_1")], "nibble").unpack()
    for pool in pools():
        assert np.array_equal(_llama.Matrix.pack([(rows, "Q4_1")], "nibble", pool_address=pool.address).unpack(), alone)


def test_rows_may_lie_apart() -> None:
    rng = np.random.default_rng(5)
    rows = any_blocks(rng, "Q8_0", 40, 2)
    apart = np.zeros((40, rows.shape[1] + 11), np.uint8)[:, 3 : 3 + rows.shape[1]]
    apart[:] = rows
    assert np.array_equal(_llama.Matrix.pack([(apart, "Q8_0")], "byte").unpack(), dequantize(rows, "Q8_0"))


@pytest.mark.parametrize(("type_name", "scale"), [("Q8_0", 512.0), ("Q8_0", -600.0), ("Q8_0", np.inf), ("Q4_0", 8192.0), ("Q4_0", np.nan)])
def test_scales_beyond_halves_are_refused(type_name: str, scale: float) -> None:
    rows = any_blocks(np.random.default_rng(6), type_name, 20, 2)
    rows[17, :2] = np.array([scale], np.float16).view(np.uint8)
    with pytest.raises(ValueError, match="scale"):
        _llama.Matrix.pack([(rows, type_name)], "byte")
    assert _llama.Matrix.pack([(rows, type_name)], "f32").num_outputs == 20


BLOCK_SIZES = [("nibble", 320), ("byte", 576), ("channel", 512), ("bf16", 1024), ("f32", 2048)]


@pytest.mark.parametrize(("format_name", "block_size"), BLOCK_SIZES)
def test_bytes_are_those_of_whole_panels(format_name: str, block_size: int) -> None:
    rows = any_blocks(np.random.default_rng(7), "Q4_1", 17, 3)
    scales = 64 if format_name == "channel" else 0
    assert _llama.Matrix.pack([(rows, "Q4_1")], format_name).num_bytes == 2 * (3 * block_size + scales)
