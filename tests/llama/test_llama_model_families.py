"""Every family of `llama` against transformers in float64, with its spec, on every instruction set; and rows that do not depend on others."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("corekit_llama._llama", reason="needs native code")

from corekit_llama._llama import instruction_sets
from corekit_llama.refusals import refusals
from llama_tiny import FAMILIES, PROMPT, context, loaded, logits, off, off_packed, reference, source_of, wanted

from corekit.builtin.transformers_model import TransformersModel
from corekit.testing.dense_rows import DenseRows, Piece


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_computes_what_transformers_does(family: str) -> None:
    right = reference(family)
    source = source_of(right)
    assert refusals(context(source)) == ()
    model = loaded(source)
    assert off(logits(model), wanted(right)) < 2e-5
    assert model.spec == TransformersModel(source, device="cpu", dtype="float32").spec


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 0.03)])
def test_every_instruction_set_computes_it(instruction_set: str, dtype: str, tolerance: float) -> None:
    right = reference("llama-biased")
    model = loaded(source_of(right), instruction_set, dtype=dtype)
    assert off(logits(model), wanted(right)) < tolerance


@pytest.mark.parametrize("instruction_set", instruction_sets())
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 0.03), ("bfloat16", 0.06)])
def test_weights_of_eight_bits(instruction_set: str, dtype: str, tolerance: float) -> None:
    """One scale for each output, the embedding's too; matrices see activations of eight bits."""
    right = reference("llama-biased")
    model = loaded(source_of(right), instruction_set, dtype=dtype, quantization="int8")
    assert model.quantization == "int8"
    rounded = reference("llama-biased")
    with torch.no_grad():
        for parameter in rounded.parameters():
            if parameter.ndim == 2:
                scale = parameter.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127  # the padding token is all zeros
                parameter.copy_((parameter / scale).round() * scale)
    distance = off_packed(logits(model), rounded)
    assert distance < tolerance
    assert distance < off_packed(logits(model), right), "the weights were not rounded"


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_any_type_are_read(stored: torch.dtype) -> None:
    right = reference("llama-biased")
    source = source_of(right, stored)
    for name, tensor in source.weights.items():
        right.state_dict()[name].copy_(tensor)
    assert off(logits(loaded(source)), wanted(right)) < 2e-5


@pytest.mark.parametrize(("dtype", "quantization"), [("float32", "none"), ("bfloat16", "none"), ("bfloat16", "int8")])
def test_a_row_alone_is_the_row_in_a_batch(dtype: str, quantization: str) -> None:
    """Bit for bit, where no other kernel is chosen for more rows: on every instruction set that has no tiles."""
    best = [name for name in instruction_sets() if name != "amx"][-1]
    model = loaded(source_of(reference("qwen3-kinds")), best, dtype=dtype, quantization=quantization)
    prompts = [tuple((token * times + times) % 53 for token in PROMPT) for times in range(1, 9)]
    together = DenseRows(model).step(*(Piece(row, prompt) for row, prompt in enumerate(prompts)))
    for prompt, found in zip(prompts, together, strict=True):
        assert torch.equal(logits(model, prompt), found)
        rows = DenseRows(model)
        assert torch.equal(torch.cat([rows.step(Piece(0, (token,)))[0] for token in prompt]), found)


def test_more_rows_than_go_through_a_layer_together() -> None:
    right = reference("llama", max_position_embeddings=700)
    tokens = tuple((7 * at) % 53 for at in range(601))
    model = loaded(source_of(right), max_model_len=700)
    assert off(logits(model, tokens), wanted(right, tokens)) < 2e-5


@pytest.mark.parametrize("threads", [1, 3, 7])
def test_threads_change_nothing(threads: int) -> None:
    source = source_of(reference("llama-biased"))
    assert torch.equal(logits(loaded(source, threads=threads)), logits(loaded(source)))


def test_a_head_that_is_there_though_it_is_tied() -> None:
    """Some files have it twice. Where it is another matrix, it is the one that answers, as in transformers."""
    right = reference("llama-tied-linear")
    source = source_of(right)
    embedding = source.weights["model.embed_tokens.weight"]
    assert torch.equal(logits(loaded(source.with_one_more("lm_head.weight", embedding))), logits(loaded(source)))
    twice = loaded(source.with_one_more("lm_head.weight", 2 * embedding))
    assert off(logits(twice), 2 * wanted(right)) < 2e-5
