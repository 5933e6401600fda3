"""Products of packed weights against float64, on ragged shapes and every instruction set of the machine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from linear_rig import BLOCK, FORMS, PANEL, SETS, expected, multiply, pack, pack_pair, pools, random_rows, silu_mul

SEEDS = st.integers(0, 2**32 - 1)
ROWS = st.integers(1, 34)
FEW = settings(max_examples=6, deadline=None)


def whole_inputs(format_name: str, num_inputs: int) -> int:
    """GGUF's formats have whole blocks only."""
    return -(-num_inputs // BLOCK) * BLOCK if format_name in ("nibble", "byte") else num_inputs


@pytest.mark.parametrize("format_name", FORMS)
@FEW
@example(seed=1, num_outputs=97, num_inputs=160, num_rows=29)
@given(seed=SEEDS, num_outputs=st.integers(1, 100), num_inputs=st.integers(1, 200), num_rows=ROWS)
def test_products_are_those_of_float64(format_name: str, seed: int, num_outputs: int, num_inputs: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = pack(rng.standard_normal((num_outputs, whole_inputs(format_name, num_inputs)), np.float32), format_name)
    x = random_rows(rng, num_rows, matrix.num_inputs)
    bias = rng.standard_normal(num_outputs, np.float32)
    before = rng.standard_normal((num_rows, num_outputs), np.float32)
    for form in {FORMS[format_name], "bf16" if format_name == "bf16" else FORMS[format_name]}:
        product, error = expected(matrix, x, form)
        for name in SETS:
            options = {"instruction_set": name, "prepared": form}
            assert np.all(np.abs(multiply(matrix, x, **options) - product) <= error), name
            with_bias = multiply(matrix, x, bias=bias, **options)
            assert np.all(np.abs(with_bias - (product + bias)) <= error + 1e-6 * (np.abs(product) + np.abs(bias))), name
            added = multiply(matrix, x, kind="add", added=before, **options)
            assert np.all(np.abs(added - (product + before)) <= error + 1e-6 * (np.abs(product) + np.abs(before))), name


@pytest.mark.parametrize("format_name", FORMS)
@FEW
@given(seed=SEEDS, num_outputs=st.integers(1, 70), num_inputs=st.integers(1, 100), num_rows=ROWS)
def test_gates_meet_their_ups(format_name: str, seed: int, num_outputs: int, num_inputs: int, num_rows: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (num_outputs, whole_inputs(format_name, num_inputs))
    gate, up = (rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(num_inputs)) for _ in range(2))
    pair = pack_pair(gate, up, format_name)
    x = rng.standard_normal((num_rows, shape[1]), np.float32)
    (gates, gate_error), (ups, up_error) = (expected(pack(part, format_name), x, FORMS[format_name]) for part in (gate, up))
    wanted = silu_mul(gates, ups)
    error = gate_error * (1.2 * np.abs(ups) + up_error) + up_error * np.abs(gates) + 1e-6 * np.abs(wanted) + 1e-30
    for name in SETS:
        result = multiply(pair, x, kind="silu_mul", instruction_set=name, prepared=FORMS[format_name])
        assert np.all(np.abs(result[:, :num_outputs] - wanted) <= error), name
        assert np.all(result[:, num_outputs:] == 0), name


@pytest.mark.parametrize("format_name", FORMS)
def test_a_row_never_depends_on_its_company(format_name: str) -> None:
    """Neither on the rows beside it nor on how many threads share the panels: bit for bit."""
    rng = np.random.default_rng(5)
    gate, up = (rng.standard_normal((7 * PANEL, 2 * BLOCK), np.float32) for _ in range(2))
    single, pair = pack(gate, format_name), pack_pair(gate, up, format_name)
    x = random_rows(rng, 61, single.num_inputs)
    forms = {FORMS[format_name], "bf16" if format_name == "bf16" else FORMS[format_name]}
    threads = pools()
    for name, form, (matrix, kind) in ((name, form, of) for name in SETS for form in forms for of in ((single, "store"), (pair, "silu_mul"))):
        options = {"kind": kind, "instruction_set": name, "prepared": form}
        alone = np.concatenate([multiply(matrix, x[at : at + 1], **options) for at in range(len(x))])
        for count in (2, 3, 4, 5, 6, 7, 11, 12, 13, 14, 15, 27, 61):
            assert np.array_equal(multiply(matrix, x[:count], **options), alone[:count]), (name, form, kind, count)
        for pool in threads:
            together = multiply(matrix, x[:9], pool_address=pool.address, **options)
            assert np.array_equal(together, alone[:9]), (name, form, kind, pool.num_threads)


@pytest.mark.parametrize("name", SETS)
def test_a_number_that_is_none_spoils_its_row_alone(name: str) -> None:
    rng = np.random.default_rng(6)
    for format_name in FORMS:
        matrix = pack(rng.standard_normal((20, 64), np.float32), format_name)
        x = rng.standard_normal((5, 64), np.float32)
        x[1, 40], x[3, 3] = np.nan, np.inf
        result = multiply(matrix, x, instruction_set=name)
        assert not np.isfinite(result[[1, 3]]).any(), format_name
        assert np.isfinite(result[[0, 2, 4]]).all(), format_name


@pytest.mark.parametrize("name", SETS)
def test_rows_of_nothing_and_of_almost_nothing(name: str) -> None:
    rng = np.random.default_rng(7)
    for format_name in FORMS:
        matrix = pack(rng.standard_normal((20, 64), np.float32), format_name)
        x = np.zeros((2, 64), np.float32)
        x[1] = 1e-39
        result = multiply(matrix, x, instruction_set=name)
        assert np.all(np.abs(result) < 1e-36), format_name


@pytest.mark.slow
@pytest.mark.parametrize("format_name", FORMS)
@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, num_outputs=st.integers(1, 400), num_inputs=st.integers(1, 3000), num_rows=st.integers(1, 150))
def test_products_of_larger_shapes(format_name: str, seed: int, num_outputs: int, num_inputs: int, num_rows: int) -> None:
    test_products_are_those_of_float64.hypothesis.inner_test(format_name, seed, num_outputs, num_inputs, num_rows)
