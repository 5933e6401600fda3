"""Tiny random models of the families that `llama` runs, as sources in memory, and the context to build them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from corekit_llama.model import LlamaModel
from corekit_llama.options import LlamaOptions
from torch import Tensor

from corekit.api import BuildContext, ModelInputs, Shard, WeightSource
from corekit.compose.surroundings import thread_pool
from corekit.testing.dense_rows import DenseRows, Piece
from corekit.testing.memory_weights import MemoryWeights

SETTINGS: Mapping[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 40,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "initializer_range": 0.3,
    "tie_word_embeddings": False,
}
"""Sizes that are no multiple of a vector, a panel or a block."""

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
FAMILIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 6}),
    "llama-tied-linear": ("llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3, "rope_theta": 100.0, "num_key_value_heads": 4}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": 5}),
    "mistral-open": ("mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", {}),
    "qwen2-windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 12}),
    "qwen3-kinds": ("qwen3", {"head_dim": 20, "attention_bias": True, "use_sliding_window": True, "sliding_window": 5, "layer_types": ALTERNATING}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 5, "tie_word_embeddings": True}),
}
PROMPT = (5, 17, 2, 40, 33, 8, 8, 21, 52, 0, 1, 30, 12, 44, 9, 27, 3, 3, 50)


def reference(family: str, **changes: Any) -> Any:
    """A random model of transformers, in float64. Norms and biases are random too: at 1 and 0 they would show nothing."""
    model_type, settings = FAMILIES[family]
    config = transformers.AutoConfig.for_model(model_type, **{**SETTINGS, **settings, **changes})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.copy_(torch.randn_like(parameter) * 0.3 + (0 if name.endswith("bias") else 1))
    return model.double()


def source_of(model: Any, dtype: torch.dtype = torch.float32) -> MemoryWeights:
    """The model's configuration and tensors, as a folder would have them."""
    config = {**model.config.to_dict(), "architectures": [type(model).__name__]}
    tied = model.all_tied_weights_keys if model.config.tie_word_embeddings else {}
    weights = {name: tensor.detach().to(dtype) for name, tensor in model.state_dict().items() if name not in tied}
    return MemoryWeights(config=config, weights=weights, generation_config={"eos_token_id": [2, 3]})


def context(source: WeightSource, **changes: Any) -> BuildContext:
    return BuildContext(**{"source": source, "max_model_len": 64, "pool": thread_pool(changes.pop("threads", 2)), **changes})


def loaded(source: WeightSource, instruction_set: Any = "auto", **changes: Any) -> LlamaModel:
    model = LlamaModel(context(source, **changes), LlamaOptions(instruction_set=instruction_set))
    model.load(source, Shard())
    return model


def logits(model: LlamaModel, tokens: tuple[int, ...] = PROMPT) -> Tensor:
    (found,) = DenseRows(model).step(Piece(0, tokens))
    return found


@torch.inference_mode()
def wanted(model: Any, tokens: tuple[int, ...] = PROMPT) -> Tensor:
    found: Tensor = model(torch.tensor([tokens])).logits[0]
    return found


def round_activations(model: Any) -> Any:
    """From now on every linear layer sees what kernels of eight bits see: blocks of 32, each rounded to 127 parts of its largest."""

    def rounded(module: Any, given: tuple[Tensor]) -> tuple[Tensor]:
        (x,) = given
        blocks = torch.nn.functional.pad(x, (0, -x.shape[-1] % 32)).unflatten(-1, (-1, 32))
        scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
        return (((blocks / scale).round() * scale).flatten(-2)[..., : x.shape[-1]],)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)
    return model


def off_packed(found: Tensor, right: Any) -> float:
    """Against the weights as they are. Activations of eight bits are what most kernels see; those of tiles see bfloat16."""
    exact = off(found, wanted(right))
    return min(exact, off(found, wanted(round_activations(right))))


def off(found: Tensor, right: Tensor) -> float:
    """The largest difference, as a part of the largest."""
    return float((found.double() - right.double()).abs().max() / right.double().abs().max())


def inputs(tokens: list[int], positions: list[int] | None = None) -> ModelInputs:
    at = list(range(len(tokens))) if positions is None else positions
    return ModelInputs(token_ids=torch.tensor(tokens), positions=torch.tensor(at))
