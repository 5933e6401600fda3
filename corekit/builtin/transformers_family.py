"""From a source's configuration to a class of transformers and a model spec, without a weight: what can be run, and why not.

The spec is not guessed from the configuration: the model is built without memory and asked in one forward pass (see `ProbeStep`).
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from corekit.api import LayerSpec, ModelSpec, WeightSource, eos_token_ids

from .transformers_attention import PROBE, ProbeStep, Unsupported, register

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
ATTENTION_KINDS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
NUM_PROBED = 3
"""Tokens of the probe: enough to tell tokens from batch, heads and layers by shape."""


@dataclass(frozen=True, slots=True)
class Family:
    """A class of transformers, and the configuration to build it with."""

    config: Any
    model_class: Any


def find_family(source: WeightSource) -> Family:
    """What the configuration alone tells. Raises Unsupported with the reason. Imports the model's module, builds nothing."""
    if source.format == "none":
        raise Unsupported("the source has no weights; transformers runs models that have some")
    config = _config(source.config)
    model_class = _model_class(config, source.config)
    kinds = sorted(set(getattr(config, "layer_types", None) or ()) - ATTENTION_KINDS)
    if kinds:
        raise Unsupported(f"{model_class.__name__} has layers of kind {', '.join(kinds)}: they keep a state of their own, which is no KV cache")
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise Unsupported("its configuration names no context length (max_position_embeddings)")
    return Family(config, model_class)


def probe(family: Family, source: WeightSource) -> ModelSpec:
    """What the model's own layers do, seen in a pass without memory. Raises Unsupported. Takes about a tenth of a second."""
    register()
    config = copy.deepcopy(family.config)
    config._attn_implementation = PROBE
    config._experts_implementation = "batched_mm"  # the one that does not look at values, of which a trial has none
    with torch.device("meta"):
        model = family.model_class(config).eval()
    with torch.inference_mode():
        layers, hidden_size = _pass(model, config)
    return ModelSpec(
        architecture=family.model_class.__name__,
        layers=layers,
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        hidden_size=hidden_size,
        tied_head=bool(config.tie_word_embeddings),
        eos_token_ids=eos_token_ids(source),
    )


def _config(raw: Mapping[str, Any]) -> Any:
    model_type = raw.get("model_type")
    if model_type not in CONFIG_MAPPING:
        code = "; code that comes with a model (auto_map) is never run" if "auto_map" in raw else ""
        raise Unsupported(f"model_type {model_type!r} is not one that transformers {transformers.__version__} knows{code}")
    try:
        config = CONFIG_MAPPING[model_type].from_dict(dict(raw))
    except Exception as error:
        raise Unsupported(f"transformers cannot read its configuration: {error}") from error
    if getattr(config, "is_encoder_decoder", False):
        raise Unsupported(f"{model_type} has an encoder; decoder-only models run here")
    for rope in _rope_types(getattr(config, "rope_parameters", None)):
        if rope in LENGTH_DEPENDENT_ROPE:
            raise Unsupported(f"its rotary positions are of type {rope!r}: they change with the longest sequence of a batch, so neighbours would matter")
    if "quantization_config" in raw:
        raise Unsupported("its weights are quantized (quantization_config), which is not unpacked here")
    return config


def _rope_types(parameters: Any) -> Iterator[str]:
    """One for the model, or one for each kind of layer."""
    if isinstance(parameters, Mapping):
        rope = parameters.get("rope_type", parameters.get("type"))
        if isinstance(rope, str):
            yield rope
        for value in parameters.values():
            yield from _rope_types(value)


def _model_class(config: Any, raw: Mapping[str, Any]) -> Any:
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, ())
    names = (names,) if isinstance(names, str) else tuple(names)
    declared: Sequence[str] = raw.get("architectures") or names
    name = next((name for name in names if name in declared), None)
    if name is None:
        raise Unsupported(f"{' or '.join(declared) or config.model_type} is not a causal language model of transformers")
    if hasattr(config, "vision_config") or hasattr(config, "audio_config"):
        raise Unsupported(f"{name} reads more than text; text-only models run here")
    model_class = getattr(transformers, name)
    if not model_class._supports_attention_backend:
        raise Unsupported(f"{name} computes its attention itself: transformers {transformers.__version__} has no attention interface for it")
    return model_class


def _pass(model: Any, config: Any) -> tuple[tuple[LayerSpec, ...], int]:
    """(layer specs, hidden size) by one forward pass without memory."""
    name = type(model).__name__
    step = ProbeStep(config)
    ids = torch.zeros(1, NUM_PROBED, dtype=torch.int64, device="meta")
    try:
        body = split(model)
        if "position_ids" not in inspect.signature(body.forward).parameters:
            raise Unsupported(f"{name} takes no positions, so sequences cannot share a step")
        # A padding mask of ones: without it transformers looks for packed sequences in positions that hold nothing here.
        hidden = body(input_ids=ids, position_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, corekit_step=step).last_hidden_state
        logits = model(inputs_embeds=hidden, use_cache=False).logits
    except Unsupported:
        raise
    except Exception as error:
        raise Unsupported(f"{name} did not pass a trial without weights: {type(error).__name__}: {error}") from error
    unseen = sorted(set(range(config.num_hidden_layers)) ^ set(step.layers))
    if unseen:
        raise Unsupported(f"attention of layers {unseen[:8]} of {config.num_hidden_layers} does not go through transformers' attention interface")
    if logits.shape != (1, NUM_PROBED, config.vocab_size):
        raise Unsupported(f"{name} gives logits of shape {tuple(logits.shape)} for {NUM_PROBED} tokens and a vocabulary of {config.vocab_size}")
    return tuple(step.layers[index] for index in range(config.num_hidden_layers)), hidden.shape[-1]


class _Given(nn.Module):
    """Stands where a model's body was: what it is given are the hidden states already."""

    def forward(self, *_: Any, inputs_embeds: torch.Tensor, **__: Any) -> _Output:
        return _Output(inputs_embeds)


class _Output:
    """What a body gives: hidden states, by name and as the first of its outputs. What only some families have beside them is None."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, index: int) -> torch.Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def find_body(model: Any) -> nn.Module:
    """The part of a causal language model that ends in hidden states."""
    body: nn.Module = model.get_decoder()
    if body is model:  # its prefix names a part of a larger model
        body = getattr(model, "model", model)
    return body


def split(model: Any) -> nn.Module:
    """Take the body out of a causal language model and return it. The rest maps hidden states, given as `inputs_embeds`, to logits.

    That way a family's own code makes its logits, with whatever scale, cap or projection it has, for just the rows that need them.
    """
    body = find_body(model)
    path = next((path for path, module in model.named_modules() if module is body), "")
    if not path:
        raise Unsupported(f"{type(model).__name__} has no part of its own that ends in hidden states")
    model.set_submodule(path, _Given())
    return body
