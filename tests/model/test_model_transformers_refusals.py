"""What the transformers provider refuses, with the reason, before a weight is read; and what it says of wrong weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from corekit.api import LayerSpec, Shard
from corekit.builtin import transformers_family
from corekit.builtin.transformers_attention import ProbeStep, Unsupported, _Mask
from corekit.builtin.transformers_model import TransformersModel, refusals

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": [5, 7],
    "pad_token_id": 0,
    "bos_token_id": 1,
}


RECURRENT_GEMMA = {**LLAMA, "model_type": "recurrent_gemma", "architectures": ["RecurrentGemmaForCausalLM"], "num_hidden_layers": 3}


@dataclass
class Weights:
    """A source in memory. `tensors` fails unless it was given some: a refusal must not read them."""

    config: Mapping[str, Any]
    state: Mapping[str, Tensor] | None = None
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    name: str = "a test's own"
    format: str = "safetensors"
    num_bytes: int = 0
    tensor_names: Sequence[str] = ()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        assert self.state is not None, "the weights were read"
        return iter(self.state.items())

    def tokenizer_files(self) -> Mapping[str, bytes]:
        return {}


def built(config: Mapping[str, Any], **more: Any) -> TransformersModel:
    return TransformersModel(Weights(config, **more), device="cpu", dtype="float32")


def llama_state(**changes: Any) -> dict[str, Tensor]:
    config = transformers.AutoConfig.for_model(**{**LLAMA, **changes})
    torch.manual_seed(0)
    return dict(transformers.LlamaForCausalLM(config).state_dict())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({**LLAMA, "model_type": "no-such-model"}, "'no-such-model' is not one that transformers"),
        ({"model_type": "mine", "auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "auto_map.* is never run"),
        ({}, "model_type None"),
        ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification is not a causal"),
        ({**LLAMA, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic'"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized"),
        ({"model_type": "t5"}, "encoder"),
        ({"model_type": "falcon"}, "FalconForCausalLM computes its attention itself"),
        ({"model_type": "mamba"}, "MambaForCausalLM computes its attention itself"),
        ({"model_type": "qwen3_next"}, "Qwen3NextForCausalLM computes its attention itself"),
        (
            {"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
            "Lfm2ForCausalLM has layers of kind conv: they keep a state",
        ),
        (RECURRENT_GEMMA, "RecurrentGemmaForCausalLM has layers of kind linear_attention: they keep a state"),
        ({"model_type": "minimax"}, "MiniMaxForCausalLM has layers of kind linear_attention: they keep a state"),
        ({"model_type": "bart"}, "encoder"),
        ({"model_type": "jamba"}, "JambaForCausalLM computes its attention itself"),
        ({"model_type": "rwkv"}, "RwkvForCausalLM computes its attention itself"),
        ({"model_type": "bloom"}, "BloomForCausalLM computes its attention itself"),
        ({"model_type": "gemma3"}, "more than text"),
        ({"model_type": "llama4"}, "more than text|not a causal"),
        ({"model_type": "qwen2_vl"}, "more than text|not a causal"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM is not a causal"),
    ],
)
def test_what_the_configuration_rules_out_is_refused(config: dict[str, Any], reason: str) -> None:
    (told,) = refusals(Weights(config))
    assert re.search(reason, told)
    with pytest.raises(Unsupported, match=reason):
        built(config)


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}


def test_rope_that_depends_on_the_longest_neighbour_is_refused() -> None:
    (told,) = refusals(Weights({**LLAMA, "model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "rope_scaling": LONGROPE}))
    assert "'longrope'" in told
    assert "neighbours" in told


def test_a_source_without_weights_is_refused() -> None:
    assert refusals(Weights({}, format="none")) == ("the source has no weights; transformers runs models that have some",)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "diffllama", "architectures": ["DiffLlamaForCausalLM"]}, "calls attention twice"),
        ({"model_type": "nemotron", "architectures": ["NemotronForCausalLM"]}, "not handed the keywords"),
        ({"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "attention_chunk_size": 64}, "what layer 0 sees depends on more than positions"),
        ({"model_type": "doge", "architectures": ["DogeForCausalLM"]}, "trial without weights"),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "both directions"),
    ],
)
def test_what_only_a_trial_shows_is_refused_without_weights(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        built({**LLAMA, **config})


def test_layers_that_never_attend_are_refused_whatever_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_family, "ATTENTION_KINDS", frozenset({"sliding_attention", "linear_attention"}))
    with pytest.raises(Unsupported, match=r"layers \[0, 1\] of 3"):
        built(RECURRENT_GEMMA)


def test_the_spec_says_what_the_layers_do() -> None:
    config = {**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 8, "sliding_window": 5}
    model = built({**config, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4})
    common = {"num_heads": 4, "num_kv_heads": 2, "key_dim": 8, "value_dim": 8, "scale": 0.5, "soft_cap": 2.0}
    assert model.spec.layers == (LayerSpec(**common, window=5), LayerSpec(**common))
    assert (model.spec.vocab_size, model.spec.context_length, model.spec.hidden_size, model.spec.tied_head) == (64, 256, 32, False)


def test_the_ids_that_end_an_answer_come_from_the_generation_configuration_first() -> None:
    assert built(LLAMA).spec.eos_token_ids == (5, 7)
    assert built(LLAMA, generation_config={"eos_token_id": 9}).spec.eos_token_ids == (9,)
    assert built(LLAMA, generation_config={"eos_token_id": None}).spec.eos_token_ids == (5, 7)
    assert built(LLAMA, generation_config={"eos_token_id": 0}).spec.eos_token_ids == (0,)


def test_missing_unexpected_and_misshapen_tensors_are_named() -> None:
    state = llama_state()
    state["model.layers.9.mlp.up_proj.weight"] = state.pop("model.layers.1.mlp.up_proj.weight")
    state["model.norm.weight"] = torch.ones(7)
    with pytest.raises(ValueError, match=r"1 missing: model.layers.1.mlp.up_proj.weight; 1 unexpected: model.layers.9.mlp.up_proj.weight; 1 of another shape"):
        built(LLAMA).load(Weights(LLAMA, state), Shard())


def test_a_tied_head_needs_no_tensor_of_its_own_and_an_untied_one_does() -> None:
    state = {name: tensor for name, tensor in llama_state().items() if name != "lm_head.weight"}
    built({**LLAMA, "tie_word_embeddings": True}).load(Weights(LLAMA, state), Shard())
    with pytest.raises(ValueError, match=r"1 missing: lm_head\.weight"):
        built(LLAMA).load(Weights(LLAMA, state), Shard())


def test_more_than_one_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="one rank"):
        built(LLAMA).load(Weights(LLAMA), Shard(rank=0, size=2))


@pytest.mark.parametrize(("window", "sees", "fits"), [(5, 5, True), (5, None, False), (None, 5, False), (5, 6, False), (None, None, True)])
def test_a_window_is_held_to_the_mask_that_the_model_asked_for(window: int | None, sees: int | None, fits: bool) -> None:
    def mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key > query - sees) if sees is not None else key <= query

    config = transformers.AutoConfig.for_model(**LLAMA)
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    step, tensors = ProbeStep(config), [torch.empty(1, heads, 3, 8) for heads in (4, 2, 2)]
    if fits:
        step(module, *tensors, _Mask(mask), {"sliding_window": window})
        assert step.layers[0].window == window
    else:
        with pytest.raises(Unsupported, match="layer 0 has a mask of its own kind"):
            step(module, *tensors, _Mask(mask), {"sliding_window": window})


def test_an_unknown_term_of_attention_is_refused() -> None:
    module = torch.nn.Module()
    module.layer_idx = 0  # type: ignore[assignment]
    with pytest.raises(Unsupported, match="passes position_bias"):
        ProbeStep(None)(module, *[torch.empty(1, 2, 3, 8)] * 3, None, {"position_bias": torch.ones(1), "dropout": 0.0})


def test_logits_that_depend_on_more_than_hidden_states_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(transformers.LlamaForCausalLM):
        def forward(self, input_ids: Tensor | None = None, **more: Any) -> Any:
            out = super().forward(input_ids=input_ids, **more)
            if input_ids is not None:
                out.logits = out.logits + input_ids[..., None]
            return out

    state = llama_state()
    monkeypatch.setattr(transformers_family.transformers, "LlamaForCausalLM", Odd)  # the module that the family sees, whoever imported it again since
    assert all(tensor.isfinite().all() and tensor.abs().max() < 100 for tensor in state.values()), "in larger numbers a token's id would be lost"
    model = built(LLAMA)
    assert model.spec.architecture == "Odd"
    with pytest.raises(ValueError, match="more than its hidden states"):
        model.load(Weights(LLAMA, state), Shard())
