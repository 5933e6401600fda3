"""Rotary positions of every kind, from configurations old and new, against those of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from corekit_llama.rotary import read_rotary
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"rope_theta": 500.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 700.0}, "rope_theta": 500.0},
        {"rope_scaling": {"type": "linear", "factor": 3}},
        {"rope_scaling": {"rope_type": "linear", "factor": 3.0}, "rope_parameters": {"rope_type": "default"}},
        {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}},
        {"rope_scaling": LLAMA3, "rope_theta": 1e4},
        {"rope_parameters": YARN},
        {"rope_parameters": {**YARN, "factor": 2.0}, "original_max_position_embeddings": 256},
        {"rope_parameters": {**YARN, "attention_factor": 1.3, "beta_fast": 20, "beta_slow": 2}},
        {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1, "truncate": False}},
        {"rope_parameters": {**YARN, "factor": 1.0, "mscale": 0.7}},
    ],
)
def test_turns_are_those_of_transformers(settings: dict[str, Any]) -> None:
    config = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "max_position_embeddings": 4096, **settings}
    library = transformers.LlamaConfig.from_dict(config)
    kind = library.rope_parameters["rope_type"]
    make = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding.compute_default_rope_parameters if kind == "default" else ROPE_INIT_FUNCTIONS[kind]
    frequencies, scale = make(library)
    found = read_rotary(config, 64, 10000.0)
    torch.testing.assert_close(torch.tensor(found.frequencies), frequencies, rtol=2e-6, atol=0)
    assert found.scale == pytest.approx(scale)
