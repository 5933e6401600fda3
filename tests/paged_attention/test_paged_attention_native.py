"""Arguments that do not fit raise, and never crash: of the native functions, and of the backend that calls them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

kernels = pytest.importorskip("corekit_paged_attention._cpu_paged", reason="needs native code")

from paged_rig import build, rig_of, spec  # noqa: E402

from corekit.api import BlockRef, Copy, KvPlan  # noqa: E402
from corekit.compose.surroundings import thread_pool  # noqa: E402

POOL = thread_pool(2)
LAYER = {"num_heads": 4, "num_kv_heads": 2, "key_dim": 8, "value_dim": 8, "scale": 1.0, "soft_cap": 0.0, "window": 0, "chunk": 0, "sinks": False}
BLOCK_BYTES = 2 * 8 * (8 + 16) * 4
MEMORY = np.zeros(6 * BLOCK_BYTES, np.uint8)
FOREIGN = np.array([99, *[0] * 15], np.int64)
"""A pool of another version."""


def attention(**changes: Any) -> Any:
    assert POOL is not None
    given = {"pool": POOL.address, "instruction_set": "auto", "dtype": "float32", "block_size": 8, "num_blocks": 4, "num_host_blocks": 2, **changes}
    return kernels.PagedAttention(**given)


def with_layer(**changes: Any) -> Any:
    made, address = attention(), MEMORY.ctypes.data
    own = {"from_layer": -1, "device": address, "device_bytes": 4 * BLOCK_BYTES, "host": address + 4 * BLOCK_BYTES, "host_bytes": 2 * BLOCK_BYTES}
    made.add_layer(**{**LAYER, **own, **changes})
    return made


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pool": 0}, "null"),
        ({"pool": FOREIGN.ctypes.data}, "ABI"),
        ({"instruction_set": "sse"}, "this processor runs auto, portable"),
        ({"dtype": "float16"}, "not 'float16'"),
        ({"block_size": 12}, "multiple of 8"),
        ({"block_size": 0}, "multiple of 8"),
        ({"num_blocks": 0}, "blocks"),
        ({"num_host_blocks": -1}, "blocks"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else next(iter(value)),
)
def test_what_attention_cannot_be_made_of(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        attention(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_heads": 3}, "3 heads"),
        ({"num_kv_heads": 0}, "0 groups"),
        ({"key_dim": 0}, "key_dim"),
        ({"value_dim": 4000}, "value_dim"),
        ({"window": -1}, "window"),
        ({"chunk": -1}, "chunk"),
        ({"device": 0}, "null"),
        ({"host": 0}, "null"),
        ({"device_bytes": 4 * BLOCK_BYTES - 1}, "bytes"),
        ({"host_bytes": 0}, "bytes"),
        ({"from_layer": 3}, "layer 3"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else next(iter(value)),
)
def test_layers_that_do_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_layer(**changes)


def test_a_pool_of_more_bytes_than_numbers_count() -> None:
    """2^27 blocks of 2^37 bytes are 2^64, which is no reason to take them for none."""
    made, address = attention(block_size=4096, num_blocks=1 << 27, num_host_blocks=0), MEMORY.ctypes.data
    wide = {**LAYER, "num_heads": 4096, "num_kv_heads": 4096, "key_dim": 1024, "value_dim": 1024}
    with pytest.raises(ValueError, match="bytes"):
        made.add_layer(**wide, from_layer=-1, device=address, device_bytes=4 * BLOCK_BYTES, host=0, host_bytes=0)


def planned(made: Any, **changes: Any) -> Any:
    """A row of 10 positions, of which 2 are new, and a decode at position 4."""
    given = {"num_rows": 2, "num_tokens": 3, "starts": [0, 2, 3], "seq_lens": [10, 5], "blocks": [[1, 2], [3, 0]], "slots": [16, 17, -1], **changes}
    arrays = {name: np.array(given[name], np.int64) for name in ("starts", "seq_lens", "blocks", "slots")}
    null = changes.get("null", "")
    address = {name: 0 if name == null else array.ctypes.data for name, array in arrays.items()}
    width = arrays["blocks"].shape[1]
    return made.plan(given["num_rows"], given["num_tokens"], address["starts"], address["seq_lens"], address["blocks"], width, width, 1, address["slots"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_rows": -1}, "negative"),
        ({"num_tokens": -1}, "negative"),
        ({"null": "starts"}, "null"),
        ({"null": "seq_lens"}, "null"),
        ({"null": "blocks"}, "null"),
        ({"null": "slots"}, "null"),
        ({"starts": [1, 2, 3]}, "query_start_loc"),
        ({"starts": [0, 2, 1]}, "query_start_loc"),
        ({"starts": [0, 2, 4]}, "query_start_loc"),
        ({"seq_lens": [17, 5]}, "17 positions"),
        ({"seq_lens": [-1, 5]}, "-1 positions"),
        ({"blocks": [[1, 4], [3, 0]]}, "block 4"),
        ({"blocks": [[1, -1], [3, 0]]}, "block -1"),
        ({"slots": [16, 32, -1]}, "slot 32"),
        ({"slots": [16, 17, -2]}, "slot -2"),
    ],
    ids=str,
)
def test_steps_that_do_not_fit_the_pool(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        planned(with_layer(), **changes)


def test_blocks_behind_a_rows_end_may_be_anything() -> None:
    assert planned(with_layer(), blocks=[[1, 2], [3, 1 << 40]]).num_tokens == 3


def test_runs_that_do_not_fit_the_layer() -> None:
    made = with_layer()
    plan, tensor = planned(made), np.zeros((3, 4, 16), np.float32)
    at = tensor.ctypes.data
    good = [0, plan, False, at, 32, 8, False, at, 32, 8, at, 32, 8, 0, at]
    made.run(*good)
    wrong = {3: "null", 7: "come together", 10: "come together", 14: "null"}
    for place, words in wrong.items():
        with pytest.raises(ValueError, match=words):
            made.run(*good[:place], 0, *good[place + 1 :])
    with pytest.raises(ValueError, match="layer 1; there are 1"):
        made.run(1, *good[1:])
    with pytest.raises(ValueError, match="without sinks"):
        made.run(*good[:13], at, at)
    with pytest.raises(ValueError, match="another backend"):
        with_layer().run(*good)
    late, address = attention(), MEMORY.ctypes.data
    early_plan = planned(late)
    late.add_layer(**LAYER, from_layer=-1, device=address, device_bytes=4 * BLOCK_BYTES, host=address, host_bytes=2 * BLOCK_BYTES)
    with pytest.raises(ValueError, match="before layer 0 was added"):
        late.run(0, early_plan, *good[2:])
    with pytest.raises(TypeError):
        made.run(0, None, *good[2:])


@pytest.mark.parametrize("copies", [[(4, 0, 1, 0)], [(1, 0, -1, 0)], [(2, 1, 1, 0)], [(0, 1, 2, 1)]])
def test_copies_of_blocks_that_are_not_there(copies: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(ValueError, match="there are"):
        with_layer().copy(copies)


def test_copies_that_are_no_rows_of_four() -> None:
    with pytest.raises(ValueError, match="rows of"):
        with_layer().copy([(1, 2)])


def test_tensors_that_do_not_fit_the_step() -> None:
    rig = rig_of(spec())
    layout = rig.layout([(rig.row(), 3)])
    plan, inputs = rig.backend.plan(layout), rig.inputs(0, 3)
    assert inputs.key is not None
    assert inputs.value is not None
    for changes, words in (
        ({"query": inputs.query[:2]}, "query"),
        ({"query": inputs.query.double()}, "query is torch.float64"),
        ({"query": inputs.query.to("meta")}, "on meta"),
        ({"key": inputs.key[:, :1]}, "key"),
        ({"value": inputs.value[..., :32]}, "value"),
        ({"value": inputs.value.float()}, "must be alike"),
        ({"key": None}, "come together"),
        ({"value": None}, "come together"),
        ({"sinks": torch.zeros(6)}, "without sinks"),
    ):
        with pytest.raises(ValueError, match=words):
            rig.run(0, replace(inputs, **changes), plan)
    sinks = rig_of(spec(sinks=True))
    inputs = sinks.inputs(0, 3)
    plan = sinks.backend.plan(sinks.layout([(sinks.row(), 3)]))
    for given, words in ((None, "with sinks"), (torch.zeros(5), "sinks have shape")):
        with pytest.raises(ValueError, match=words):
            sinks.run(0, replace(inputs, sinks=given), plan)


def test_layouts_that_are_not_what_they_say() -> None:
    rig = rig_of(spec())
    layout = rig.layout([(rig.row(), 3)])
    with pytest.raises(ValueError, match="int64"):
        rig.backend.plan(replace(layout, seq_lens=layout.seq_lens.int()))
    with pytest.raises(ValueError, match="2 rows"):
        rig.backend.plan(replace(layout, num_rows=2))
    with pytest.raises(ValueError, match="4 tokens"):
        rig.backend.plan(replace(layout, num_tokens=4))


def test_pools_come_once_and_as_they_were_counted() -> None:
    layers = (spec(),)
    backend = build(layers)
    plan = KvPlan(num_blocks=4, num_host_blocks=0, block_size=16, kv_dtype="bfloat16", layers=layers)
    with pytest.raises(RuntimeError, match="allocate_kv comes first"):
        backend.copy_blocks([Copy(BlockRef(1), BlockRef(2))])
    for changes, words in (({"block_size": 32}, "blocks of 32"), ({"kv_dtype": "float16"}, "float16"), ({"layers": ()}, "other layers")):
        with pytest.raises(ValueError, match=words):
            backend.allocate_kv(replace(plan, **changes))
    backend.allocate_kv(plan)
    with pytest.raises(RuntimeError, match="called before"):
        backend.allocate_kv(plan)
