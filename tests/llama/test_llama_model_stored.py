"""Weights as a GGUF file has them: packed as they are, mixed within a layer, of types that no kernel knows, and from the demo model's own file."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("corekit_llama._llama", reason="needs native code")

from corekit_llama._llama import instruction_sets
from corekit_llama.architecture import read_architecture
from corekit_llama.weights import load
from llama_stored import StoredWeights, one_after_another, stored
from llama_tiny import loaded, logits, off, off_packed, reference, source_of, wanted

from corekit.api import WeightSource
from corekit.compose.surroundings import thread_pool

TIES = 0.03
"""Where an activation lies between two of 255 steps, single precision may round it to the other."""
SIZES = {"hidden_size": 64, "intermediate_size": 96}


def packed(source: WeightSource, quantization: str, dtype: str = "bfloat16") -> dict[tuple[int, str], str]:
    """(layer, part) -> the format that it was packed in."""
    pool = thread_pool(2)
    assert pool is not None
    found = load(source, read_architecture(source), dtype=dtype, quantization=quantization, pool_address=pool.address)
    return {where: matrix.format for where, matrix in found.matrices.items()}


@pytest.mark.parametrize("instruction_set", instruction_sets())
def test_packed_weights_compute_what_they_mean(instruction_set: str) -> None:
    """Against the dequantized weights and rounded activations: what is left are the ties of that rounding."""
    right = reference("llama", **SIZES)
    source = stored(right)
    assert {*source.stored_types.values()} >= {"Q4_0", "Q4_1", "Q8_0", "F32"}
    found = logits(loaded(source, instruction_set, quantization="stored"))
    assert off_packed(found, right) < TIES


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.03)])
def test_packed_weights_in_a_dtype(dtype: str, tolerance: float) -> None:
    """ "none": what the file packs is computed on in the model's dtype."""
    right = reference("llama", **SIZES)
    source = stored(right)
    assert {*packed(source, "none", dtype).values()} == {"bf16" if dtype == "bfloat16" else "f32"}
    assert off(logits(loaded(source, dtype=dtype)), wanted(right)) < tolerance


def test_a_matrix_takes_the_smallest_format_that_holds_its_parts() -> None:
    types = {"q_proj": "Q4_0", "k_proj": "Q4_1", "v_proj": "Q4_0", "gate_proj": "Q4_1", "up_proj": "Q8_0", "o_proj": "Q8_0", "down_proj": "F16"}
    source = stored(reference("llama", **SIZES), lambda name: next((type_name for part, type_name in types.items() if part in name), "BF16"))
    layer = {"qkv": "nibble", "gate_up": "byte", "output": "byte", "down": "bf16"}
    wanted = {(at, part): chosen for at in range(3) for part, chosen in layer.items()}
    assert packed(source, "stored") == {**wanted, (-1, "embedding"): "bf16", (-1, "head"): "bf16"}
    assert packed(source, "stored", "float32")[0, "down"] == "f32"
    assert {*packed(source, "int8").values()} == {"channel"}


def test_types_that_no_kernel_knows_are_made_floats() -> None:
    right = reference("llama", **SIZES)
    source = stored(right, lambda name: "Q5_1" if "down" in name else one_after_another(name))
    assert packed(source, "stored", "float32")[0, "down"] == "f32"
    assert off(logits(loaded(source)), wanted(right)) < 2e-5


def test_a_source_without_packed_weights_has_none_to_compute_on() -> None:
    right = reference("llama", **SIZES)
    for source in (source_of(right), stored(right, lambda name: "F16"), stored(right, lambda name: "Q5_1" if "down" in name else "F32")):
        assert loaded(source, quantization="stored").quantization == "none"
        assert {*packed(source, "stored").values()} == {"bf16"}
    assert loaded(stored(right, lambda name: "Q8_0" if "down" in name else "F32"), quantization="stored").quantization == "stored"


def test_a_packed_embedding_is_a_head_too() -> None:
    right = reference("llama-tied-linear", **SIZES)
    source = stored(right, lambda name: "Q8_0")
    assert (-1, "head") not in packed(source, "stored")
    assert off_packed(logits(loaded(source, quantization="stored")), right) < TIES


@pytest.mark.parametrize(("type_name", "at"), [("Q8_0", 0), ("Q4_0", 0), ("Q4_1", 0), ("Q4_1", 2)])
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_damaged_blocks_are_told(type_name: str, at: int, number: float) -> None:
    """A scale or minimum that is not finite."""

    class Damaged(StoredWeights):
        def stored_tensors(self):  # type: ignore[no-untyped-def]
            for tensor in super().stored_tensors():
                rows = tensor.rows.copy()
                if "down" in tensor.name:
                    rows[0, at : at + 2] = np.array([number], np.float16).view(np.uint8)
                yield type(tensor)(name=tensor.name, type_name=tensor.type_name, shape=tensor.shape, rows=rows)

    good = stored(reference("llama", **SIZES), lambda name: type_name)
    with pytest.raises(ValueError, match=r"down_proj.*damaged"):
        packed(Damaged(**vars(good)), "stored")


def test_the_demo_model_is_packed_as_its_file_has_it(demo_source: WeightSource) -> None:
    formats = packed(demo_source, "stored")
    assert formats == {(at, part): "nibble" for at in range(30) for part in ("qkv", "output", "gate_up", "down")} | {(-1, "embedding"): "byte"}
    model = loaded(demo_source, quantization="stored", dtype="bfloat16")
    best = logits(model, (504, 3575, 282, 4649, 314)).argmax(-1)  # "The capital of France is"
    assert best[-1] == 7042  # " Paris"
    assert torch.equal(best, logits(model, (504, 3575, 282, 4649, 314)).argmax(-1))
