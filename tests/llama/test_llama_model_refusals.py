"""What `llama` refuses, with the reason and before a weight is read; and what it says of wrong weights and wrong steps."""

from __future__ import annotations

import importlib.machinery
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("corekit_llama._llama", reason="needs native code")

from corekit_llama import refusals as refusals_module
from corekit_llama.model import LlamaModel
from corekit_llama.options import LlamaOptions
from corekit_llama.refusals import refusals
from llama_tiny import context, inputs, loaded, reference, source_of

from corekit.api import CorekitError, ModelInputs, Shard, eos_token_ids
from corekit.testing.dense_rows import DenseRows, Piece
from corekit.testing.memory_weights import MemoryWeights

SOURCE = source_of(reference("llama"))
CONFIG = dict(SOURCE.config)


def told(**changes: Any) -> str:
    """The reasons against the tiny model, with these settings changed; no tensor is read."""
    source = replace(SOURCE, config={**CONFIG, **changes}, sealed=True)
    return "; ".join(refusals(context(source)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gpt2"}, "model_type 'gpt2' is not one of llama, mistral"),
        ({"model_type": ["llama"]}, "is not one of"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification is not LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"vision_config": {}}, "more than text"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic': they change with the longest sequence"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope': they change with the longest sequence"),
        ({"rope_parameters": {"rope_type": "mrope"}}, "'mrope', which is not known here"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "not one table for all layers"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "rotary settings give no turns"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "large"}}, "rope_theta is 'large'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"sliding_window": 5}, "has no windows"),
        ({"layer_types": ["chunked_attention"] * 3}, "layers of kind chunked_attention"),
        ({"layer_types": ["full_attention"]}, "does not name a kind for each of 3 layers"),
        ({"layer_types": ["sliding_attention"] * 3}, "names none"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"hidden_size": 1 << 30, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": None}, "head_dim is 1073741824"),
        ({"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1e308}}, "rotary settings give no turns"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"num_key_value_heads": 3}, "3 KV heads"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"attention_bias": True}, "12 missing: model.layers.0.self_attn.k_proj.bias"),
        ({"num_hidden_layers": 2}, "9 unexpected: model.layers.2"),
        ({"model_type": "mistral", "architectures": None, "sliding_window": 5, "layer_types": ["full_attention"] * 3}, "say different things"),
        ({"model_type": "qwen2", "architectures": None, "use_sliding_window": True, "max_window_layers": "all"}, "max_window_layers is 'all'"),
        ({"model_type": "smollm3", "architectures": None, "no_rope_layers": [1, 0]}, "no_rope_layers is [1, 0]"),
    ],
)
def test_a_model_that_it_cannot_run(changes: dict[str, Any], reason: str) -> None:
    found = told(**changes)
    assert reason in found
    assert '[model] use = "transformers"' in found, "the next step"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"device": "cuda"}, "runs on a CPU, and the device is cuda"),
        ({"dtype": "float16"}, "float32 or bfloat16, and dtype is float16"),
        ({"pool": None}, "installed without a C++ compiler"),
        ({"source": None}, "no source of weights"),
        ({"source": MemoryWeights()}, "the source has no weights"),
    ],
)
def test_a_place_where_it_cannot_run(changes: dict[str, Any], reason: str) -> None:
    assert reason in "; ".join(refusals(replace(context(SOURCE), **changes)))


def test_without_native_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> importlib.machinery.ModuleSpec | None:
        assert name == "corekit_llama._llama"
        return None

    monkeypatch.setattr(refusals_module, "find_spec", missing)
    assert "installed without a C++ compiler" in "; ".join(refusals(context(SOURCE)))


def test_names_that_nobody_reads_are_no_reason() -> None:
    """Old files have the rotary frequencies of every layer; quantized and adapted ones have tensors that mean something."""
    old = SOURCE.with_one_more("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(5))
    assert refusals(context(old)) == ()
    loaded(old)
    for name in ("model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.self_attn.q_proj.weight_scale"):
        assert name in "; ".join(refusals(context(SOURCE.with_one_more(name, torch.ones(5)))))


def test_an_instruction_set_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="this processor runs portable"):
        LlamaModel(context(SOURCE), LlamaOptions(instruction_set="mmx"))  # type: ignore[arg-type]


def test_weights_that_are_not_the_models() -> None:
    def load(source: MemoryWeights, shard: Shard | None = None) -> None:
        LlamaModel(context(SOURCE), LlamaOptions()).load(source, shard or Shard())

    name = "model.layers.1.mlp.down_proj.weight"
    wrong = replace(SOURCE, weights={**(SOURCE.weights or {}), name: torch.ones(40, 55)})
    with pytest.raises(ValueError, match=rf"1 of another shape: {name} \(40, 55\), expected \(40, 56\)"):
        load(wrong)
    empty = replace(SOURCE, weights={**(SOURCE.weights or {}), name: torch.ones(0, 56)})
    with pytest.raises(ValueError, match=rf"1 of another shape: {name} \(0, 56\), expected \(40, 56\)"):
        load(empty)
    with pytest.raises(ValueError, match=rf"1 missing: {name}\. The files are incomplete"):
        load(SOURCE.without(name))
    with pytest.raises(ValueError, match="one rank, and 2 were asked for"):
        load(SOURCE, Shard(rank=0, size=2))
    model = loaded(SOURCE)
    with pytest.raises(ValueError, match="loaded already"):
        model.load(SOURCE, Shard())


def test_a_step_that_cannot_be() -> None:
    model = loaded(SOURCE)
    attend = _NoAttention()
    with pytest.raises(ValueError, match="token 1 of the step has id 53; ids are 0 to 52"):
        model.forward(inputs([3, 53]), attend)
    with pytest.raises(ValueError, match="has id -1"):
        model.forward(inputs([-1]), attend)
    with pytest.raises(ValueError, match="stands at position 64; positions are 0 to 63"):
        model.forward(inputs([3, 4], [0, 64]), attend)
    with pytest.raises(ValueError, match="position -1"):
        model.forward(inputs([3], [-1]), attend)
    with pytest.raises(ValueError, match="2 token_ids came with 1 positions"):
        model.forward(inputs([3, 4], [0]), attend)
    with pytest.raises(ValueError, match="num_tokens is 0"):
        model.forward(ModelInputs(token_ids=torch.zeros(0, dtype=torch.int64), positions=torch.zeros(0, dtype=torch.int64)), attend)
    with pytest.raises(ValueError, match=r"token_ids are torch.int32"):
        model.forward(ModelInputs(token_ids=torch.zeros(1, dtype=torch.int32), positions=torch.zeros(1, dtype=torch.int64)), attend)
    with pytest.raises(ValueError, match=r"attention gave torch.float32 \(1, 2, 10\)"):
        model.forward(inputs([3]), _NoAttention(torch.zeros(1, 2, 10)))
    with pytest.raises(ValueError, match=r"attention gave torch.float64"):
        model.forward(inputs([3]), _NoAttention(torch.zeros(1, 4, 10, dtype=torch.float64)))
    with pytest.raises(ValueError, match=r"hidden states are \(2, 39\)"):
        model.logits(torch.zeros(2, 39))
    assert model.logits(torch.zeros(0, 40)).shape == (0, 53)
    assert DenseRows(model).step(Piece(0, [3, 4]))[0].isfinite().all(), "after all those faults it still computes"


class _NoAttention:
    kv_views = None
    slot_mappings: tuple[torch.Tensor, ...] = ()

    def __init__(self, gives: torch.Tensor | None = None) -> None:
        self._gives = gives

    def __call__(self, layer: int, query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return query if self._gives is None else self._gives


def test_a_model_without_weights_says_so() -> None:
    model = LlamaModel(context(SOURCE), LlamaOptions())
    assert model.spec.architecture == "LlamaForCausalLM"
    with pytest.raises(ValueError, match="not loaded"):
        model.forward(inputs([3]), _NoAttention())
    with pytest.raises(ValueError, match="not loaded"):
        model.logits(torch.zeros(1, 40))


def test_what_attention_gives_may_have_any_strides() -> None:
    class Strided(_NoAttention):
        def __call__(self, layer: int, query: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return query.transpose(0, 1).contiguous().transpose(0, 1)

    model = loaded(SOURCE)
    assert torch.equal(model.forward(inputs([3, 4]), Strided()), model.forward(inputs([3, 4]), _NoAttention()))


def test_the_context_that_says_no_length_means_the_models_own() -> None:
    model = loaded(SOURCE, max_model_len=0)
    assert model.forward(inputs([3], [63]), _NoAttention()).isfinite().all()


def test_ids_that_end_an_answer_are_ids() -> None:
    """Said by name when the model is built: text in their place would otherwise end answers at its first characters, or nowhere."""
    for given, wanted in ((7, (7,)), ([7, 9], (7, 9)), (None, ()), (-1, ())):
        source = replace(SOURCE, config={**CONFIG, "eos_token_id": given}, generation_config={}, sealed=True)
        assert eos_token_ids(source) == wanted
    for given in (2.0, "2", [2, "3"], {"id": 2}, True):
        source = replace(SOURCE, config={**CONFIG, "eos_token_id": given}, generation_config={}, sealed=True)
        with pytest.raises(CorekitError, match=r"eos_token_id is .*; an id or a list of ids is needed"):
            LlamaModel(context(source), LlamaOptions())
