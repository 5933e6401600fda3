"""The native decoder's own checks: null, wrong sizes, calls out of order. An error every time, never a crash."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("corekit_llama._llama", reason="needs native code")

from corekit_llama._llama import Decoder, Matrix

from corekit.api import KvTensor, KvView
from corekit.compose.surroundings import thread_pool

HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCAB, LAYERS = 16, 24, 2, 1, 8, 20, 2
SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_heads": HEADS,
    "num_kv_heads": KV_HEADS,
    "head_dim": DIM,
    "vocab_size": VOCAB,
    "num_layers": LAYERS,
    "num_positions": 32,
}
POOL = thread_pool(2)


def matrix(num_outputs: int, num_inputs: int, *more: int) -> Matrix:
    draw = np.random.default_rng(0)
    parts = [(draw.standard_normal((count, num_inputs), np.float32).view(np.uint8), "F32") for count in (num_outputs, *more)]
    return Matrix.pack(parts, "f32", interleaved=bool(more))


def decoder(**changes: Any) -> Decoder:
    assert POOL is not None
    return Decoder(**{"pool": POOL.address, "instruction_set": "auto", "norm_epsilon": 1e-6, "bf16": False, **SIZES, **changes})


def layer(**changes: Any) -> dict[str, Any]:
    right: dict[str, Any] = {"qkv": matrix((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), "output": matrix(HIDDEN, HEADS * DIM), "down": matrix(HIDDEN, INNER)}
    right |= {"gate_up": matrix(INNER, HIDDEN, INNER), "input_norm": np.ones(HIDDEN, np.float32), "mlp_norm": np.ones(HIDDEN, np.float32)}
    return {**right, **changes}


def ends(**changes: Any) -> dict[str, Any]:
    return {"embedding": matrix(VOCAB, HIDDEN), "head": None, "final_norm": np.ones(HIDDEN, np.float32), **changes}


def ready() -> Decoder:
    made = decoder()
    for at in range(LAYERS):
        made.set_layer(at, **layer())
    made.set_ends(**ends())
    made.set_rotary([0.1] * (DIM // 2), 1.0)
    return made


class Step:
    """Arrays of one step of three tokens, and their addresses."""

    def __init__(self) -> None:
        self.arrays = SimpleNamespace(
            token_ids=np.array([1, 2, 19]), positions=np.array([0, 1, 31]), slots=np.array([4, 5, -1]), query=np.zeros((3, HEADS, DIM), np.float32)
        )
        self.arrays.key, self.arrays.value = np.zeros((2, 3, KV_HEADS, DIM), np.float32)
        self.arrays.attended, self.arrays.hidden = np.ones((3, HEADS, DIM), np.float32), np.zeros((3, HIDDEN), np.float32)
        self.at = SimpleNamespace(**{name: array.ctypes.data for name, array in vars(self.arrays).items()})

    def start(self, made: Decoder, **changes: Any) -> None:
        at = self.at
        given = {"token_ids": at.token_ids, "positions": at.positions, "slots": 0, "num_tokens": 3, "query": at.query, "key": at.key, "value": at.value}
        made.start(**{**given, **changes})

    def advance(self, made: Decoder, **changes: Any) -> None:
        at = self.at
        made.advance(**{"layer": 0, "attended": at.attended, "query": at.query, "key": at.key, "value": at.value, **changes})

    def whole(self, made: Decoder) -> Any:
        self.start(made)
        self.advance(made)
        made.finish(self.at.attended, self.at.hidden)
        return self.arrays.hidden.copy()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pool": 0}, "thread pool is null"),
        ({"pool": 3}, "misaligned"),
        ({"instruction_set": "mmx"}, "instruction set mmx"),
        *[({name: value}, f"{name} is {value}") for name in SIZES for value in (0, -1)],
        ({"hidden_size": 1 << 30}, "hidden_size"),
        ({"num_heads": 3, "num_kv_heads": 2}, "no multiple"),
        ({"num_kv_heads": 3}, "num_kv_heads is 3"),
        ({"head_dim": 7}, "head_dim is odd"),
        ({"norm_epsilon": -1.0}, "norm_epsilon"),
        ({"norm_epsilon": float("nan")}, "norm_epsilon"),
    ],
)
def test_sizes_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decoder(**changes)


@pytest.mark.parametrize("name", ["qkv", "output", "gate_up", "down"])
def test_matrices_of_other_sizes(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has 5 outputs and 7 inputs"):
        decoder().set_layer(0, **layer(**{name: matrix(5, 7)}))
    with pytest.raises(ValueError, match=f"{name} is missing"):
        decoder().set_layer(0, **layer(**{name: None}))


@pytest.mark.parametrize("name", ["input_norm", "mlp_norm", "query_norm", "key_norm", "qkv_bias", "output_bias", "gate_bias", "down_bias"])
def test_vectors_of_other_sizes(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has 5 numbers"):
        decoder().set_layer(0, **layer(**{name: np.ones(5, np.float32)}))
    with pytest.raises(ValueError, match="one dimension"):
        decoder().set_layer(0, **layer(**{name: np.ones((2, 5), np.float32)}))


def test_layers_and_ends_that_cannot_be() -> None:
    for at in (-1, LAYERS):
        with pytest.raises(ValueError, match=f"no layer {at}"):
            decoder().set_layer(at, **layer())
    with pytest.raises(ValueError, match="up_bias has 0 numbers"):
        decoder().set_layer(0, **layer(gate_bias=np.ones(INNER, np.float32)))
    with pytest.raises(ValueError, match="bias for up and none for gate"):
        decoder().set_layer(0, **layer(up_bias=np.ones(INNER, np.float32)))
    with pytest.raises(ValueError, match="embedding has"):
        decoder().set_ends(**ends(embedding=matrix(VOCAB, HIDDEN - 1)))
    with pytest.raises(ValueError, match="head has"):
        decoder().set_ends(**ends(head=matrix(VOCAB + 1, HIDDEN)))
    with pytest.raises(ValueError, match="final_norm has 3"):
        decoder().set_ends(**ends(final_norm=np.ones(3, np.float32)))
    for frequencies, scale in (([0.1], 1.0), ([float("inf")] * 4, 1.0), ([0.1] * 4, float("nan"))):
        with pytest.raises(ValueError, match="rotary"):
            decoder().set_rotary(frequencies, scale)


def test_a_step_before_its_weights() -> None:
    made, step = decoder(), Step()
    for prepare in (lambda: made.set_ends(**ends()), lambda: made.set_rotary([0.1] * 4, 1.0), lambda: made.set_layer(0, **layer())):
        with pytest.raises(ValueError, match=r"not loaded|not set"):
            step.start(made)
        prepare()
    with pytest.raises(ValueError, match="layer 1 is missing"):
        step.start(made)
    made.set_layer(1, **layer())
    assert np.isfinite(step.whole(made)).all()


@pytest.mark.parametrize("name", ["token_ids", "positions", "query", "key", "value"])
def test_a_step_with_a_null_address(name: str) -> None:
    with pytest.raises(ValueError, match="null"):
        Step().start(ready(), **{name: 0})
    with pytest.raises(ValueError, match="aligned"):
        Step().start(ready(), **{name: 1})


def test_numbers_out_of_range() -> None:
    made = ready()
    for array, bad in (("token_ids", VOCAB), ("token_ids", -1), ("positions", 32), ("positions", -1), ("positions", 1 << 40)):
        step = Step()
        getattr(step.arrays, array)[1] = bad
        with pytest.raises(ValueError, match=f"token 1 of the step .* {bad};"):
            step.start(made)
    for count in (0, -5, 1 << 30):
        with pytest.raises(ValueError, match=f"num_tokens is {count}"):
            Step().start(made, num_tokens=count)


def test_calls_out_of_order() -> None:
    made, step = ready(), Step()
    right = step.whole(made)
    for wrong in (lambda: step.advance(made), lambda: made.finish(step.at.attended, step.at.hidden)):
        with pytest.raises(ValueError, match="awaited"):
            wrong()  # nothing has started
    step.start(made)
    for at in (-1, 1, 2):
        with pytest.raises(ValueError, match="awaited"):
            step.advance(made, layer=at)
    with pytest.raises(ValueError, match="awaited"):
        made.finish(step.at.attended, step.at.hidden)
    for name in ("attended", "query", "key", "value"):
        with pytest.raises(ValueError, match="null"):
            step.advance(made, **{name: 0})
    step.advance(made)
    for attended, hidden in ((0, step.at.hidden), (step.at.attended, 0)):
        with pytest.raises(ValueError, match="null"):
            made.finish(attended, hidden)
    made.finish(step.at.attended, step.at.hidden)
    np.testing.assert_array_equal(step.arrays.hidden, right, "faults in between change nothing")


def test_what_is_set_ends_a_step() -> None:
    """Its buffers and rotary positions were those of other weights."""
    made, step = ready(), Step()
    right = step.whole(made)
    setters = (lambda: made.set_layer(1, **layer()), lambda: made.set_ends(**ends()), lambda: made.set_kv([]), lambda: made.set_rotary([0.1] * (DIM // 2), 1.0))
    for setter in setters:
        step.start(made)
        setter()
        with pytest.raises(ValueError, match="awaited"):
            step.advance(made)
        np.testing.assert_array_equal(step.whole(made), right)


def test_logits_of_what_is_not_there() -> None:
    made, step = ready(), Step()
    to = np.zeros((3, VOCAB), np.float32)
    for hidden, rows, at in ((0, 3, to.ctypes.data), (step.at.hidden, 3, 0), (step.at.hidden, 0, to.ctypes.data), (step.at.hidden, -1, to.ctypes.data)):
        with pytest.raises(ValueError, match=r"null|num_rows"):
            made.logits(hidden, rows, at)
    with pytest.raises(ValueError, match="aligned"):
        made.logits(step.at.hidden + 1, 1, to.ctypes.data)


def view(pool: Any, **changes: Any) -> KvView:
    tensor = {"address": pool.ctypes.data, "block_stride": 4 * DIM, "head_stride": 4 * DIM, "token_stride": DIM, "dim_stride": 1}
    of_tensor = {name: changes.pop(name) for name in list(changes) if name in (*tensor, "token_group", "dim_group")}
    place = KvTensor(**{**tensor, **of_tensor})
    right = {"dtype": "float32", "block_size": 4, "num_blocks": 3, "num_kv_heads": KV_HEADS, "key_dim": DIM, "value_dim": DIM}
    return KvView(key=place, value=place, **{**right, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"address": 0}, "null"),
        ({"address": 2}, "aligned"),
        ({"dtype": "float16"}, "float16 cannot be written"),
        ({"num_kv_heads": 2}, "other heads"),
        ({"key_dim": 4}, "other heads"),
        ({"value_dim": 4}, "other heads"),
        ({"block_size": 0}, "same number of blocks"),
        ({"num_blocks": -1}, "same number of blocks"),
        ({"token_group": 0}, "groups"),
        ({"dim_group": 0}, "groups"),
        *[({name: -1}, "negative") for name in ("block_stride", "head_stride", "token_stride", "dim_stride")],
    ],
)
def test_pools_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    pool = np.zeros(3 * 4 * DIM, np.float32)
    with pytest.raises(ValueError, match=message):
        ready().set_kv([view(pool, **changes)] * LAYERS)


def test_slots_out_of_range_and_layers_without_a_pool() -> None:
    made, step, pool = ready(), Step(), np.zeros(3 * 4 * DIM, np.float32)
    with pytest.raises(ValueError, match="1 layers, the model 2"):
        made.set_kv([view(pool)])
    with pytest.raises(ValueError, match="same number of blocks"):
        made.set_kv([view(pool), view(pool, num_blocks=2)])
    made.set_kv([view(pool), None])
    with pytest.raises(ValueError, match="slots are null"):
        step.start(made, key=0, value=0)
    for slot in (12, -2):
        step.arrays.slots[2] = slot
        with pytest.raises(ValueError, match=f"has slot {slot}; slots are -1 to 11"):
            step.start(made, slots=step.at.slots, key=0, value=0)
    step.arrays.slots[2] = -1
    step.start(made, slots=step.at.slots, key=0, value=0)
    written = np.flatnonzero(pool.reshape(12, DIM).any(1))
    assert written.tolist() == [4, 5]
    with pytest.raises(ValueError, match="layer 1 does not write"):
        step.advance(made, key=0, value=0)
    step.advance(made)
