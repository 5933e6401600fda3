"""The model kit on our own models; every planted fault is caught by a law of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from kit_mutants import breaks, laws, subject
from model_mutants import MUTANTS, RIGHT, RIGHT_WRITER, weights

from corekit.testing import ModelKit
from corekit.testing.memory_weights import MemoryWeights


def tiny(model_type: str, **changes: Any) -> MemoryWeights:
    """A random model of a family of transformers."""
    settings = {"vocab_size": 53, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    settings |= {"max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0, "initializer_range": 0.4}
    config = transformers.AutoConfig.for_model(model_type, **settings, **changes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    tied = model.all_tied_weights_keys if config.tie_word_embeddings else {}
    return MemoryWeights(config=config.to_dict(), weights={name: tensor.detach() for name, tensor in model.state_dict().items() if name not in tied})


class TestFingerprint(ModelKit):
    provider = "fingerprint"
    options = {"max_draft_tokens": 4}  # noqa: RUF012
    tolerance = 0.0


class TestScripted(ModelKit):
    provider = "scripted"
    options = {"random": True, "max_draft_tokens": 4}  # noqa: RUF012
    tolerance = 0.0
    reads_positions = False  # it finds the token before its own, wherever that stands


class TestTransformers(ModelKit):
    provider = "transformers"
    source = tiny("llama", tie_word_embeddings=False)


class TestTransformersWithWindows(ModelKit):
    """Two kinds of layers, soft caps, a tied head."""

    provider = "transformers"
    source = tiny("gemma2", sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0, query_pre_attn_scalar=20)


class TestTransformersWithSinks(ModelKit):
    provider = "transformers"
    source = tiny("gpt_oss", sliding_window=5, num_local_experts=4, num_experts_per_tok=2)


class TestTiny(ModelKit):
    """The right model that the faults are planted in."""

    provider = RIGHT
    source = weights()


class TestTinyWriter(ModelKit):
    """The right model that the faults of writing are planted in."""

    provider = RIGHT_WRITER
    source = weights()


@pytest.mark.parametrize(("mutant", "law"), [pytest.param(provider, law, id=provider.name) for provider, law in MUTANTS])
def test_a_fault_is_caught(mutant: Any, law: str) -> None:
    assert breaks(subject(ModelKit, mutant, source=weights()), law), f"{law} lets {mutant.name} pass"


def test_every_fault_has_a_law_of_its_own() -> None:
    named = [law for _, law in MUTANTS]
    assert len(set(named)) == len(named) >= 4
    assert set(named) <= set(laws(subject(ModelKit, RIGHT)))
