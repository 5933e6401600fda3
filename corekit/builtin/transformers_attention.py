"""Between a transformers model and the KV cache: the attention function that its layers call, and the probe of what they pass.

The function is registered under two names. Under `ATTENTION` a layer's tensors go to the step that travels through the call as a
keyword; no mask is made. Under `PROBE` the masks that the model asks for arrive too, as functions of positions, so that a spec
can be held to them. Knows no family of models and no weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from corekit.api import Attend, CorekitError, LayerSpec

ATTENTION = "corekit"
PROBE = "corekit-probe"

PASSED = frozenset({"scaling", "dropout", "sliding_window", "softcap", "s_aux", "is_causal", "position_ids", "position_embeddings", "use_cache", "cache"})
"""Keywords whose meaning for attention is known; any other stands for a term of the scores that would be lost."""


class Unsupported(CorekitError, ValueError):
    """Why this engine cannot run a model; said before its weights are loaded."""


class Step(Protocol):
    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, passed: Mapping[str, Any]) -> Tensor:
        """query [1, heads, tokens, dim], key and value alike -> [1, tokens, heads, value_dim]."""
        ...


def register() -> None:
    """Make both names known to transformers. Safe to repeat."""
    AttentionInterface.register(ATTENTION, _attention)
    AttentionInterface.register(PROBE, _attention)
    AttentionMaskInterface.register(PROBE, _mask)


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, *, corekit_step: Step | None = None, **passed: Any
) -> tuple[Tensor, None]:
    if corekit_step is None:
        raise Unsupported(f"{type(module).__name__} is not handed the keywords of the model's call, so it cannot reach the KV cache")
    return corekit_step(module, query, key, value, attention_mask, passed), None


@dataclass(frozen=True, slots=True)
class _Mask:
    """Which keys a query may see, as the model's own function of (batch, head, query position, key position)."""

    sees: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _mask(*_: Any, mask_function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], **__: Any) -> _Mask:
    return _Mask(mask_function)


@dataclass(frozen=True, slots=True)
class PackedStep:
    """One step of the engine: every layer's tensors go to its attention."""

    attend: Attend

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, passed: Mapping[str, Any]) -> Tensor:
        layer: Any = module.layer_idx
        return self.attend(layer, query[0].transpose(0, 1), key[0].transpose(0, 1), value[0].transpose(0, 1), sinks=passed.get("s_aux"))[None]


@dataclass(frozen=True, slots=True)
class BlankStep:
    """Attention that answers zero: for a pass in which only what follows attention matters."""

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, passed: Mapping[str, Any]) -> Tensor:
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@dataclass(frozen=True, slots=True)
class ProbeStep:
    """Writes down what every layer passes. `layers` holds one spec for each layer that called, by its index."""

    config: Any
    layers: dict[int, LayerSpec] = field(default_factory=dict)

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, passed: Mapping[str, Any]) -> Tensor:
        layer: Any = getattr(module, "layer_idx", None)
        if not isinstance(layer, int) or layer in self.layers:
            raise Unsupported(f"an attention module calls attention {'twice' if layer in self.layers else 'without a layer index'}: {type(module).__name__}")
        unknown = sorted(name for name, passed_value in passed.items() if name not in PASSED and passed_value is not None)
        if unknown:
            raise Unsupported(f"layer {layer} passes {', '.join(unknown)} to its attention, which has no meaning here")
        if not passed.get("is_causal", getattr(module, "is_causal", True)):
            raise Unsupported(f"layer {layer} attends in both directions")
        spec = self._spec(layer, query, key, value, passed)
        _check_mask(layer, spec, mask, getattr(self.config, "max_position_embeddings", 0))
        self.layers[layer] = spec
        return BlankStep()(module, query, key, value, mask, passed)

    def _spec(self, layer: int, query: Tensor, key: Tensor, value: Tensor, passed: Mapping[str, Any]) -> LayerSpec:
        window, chunk = self._reach(layer, passed.get("sliding_window"))
        scale = passed.get("scaling")
        return LayerSpec(
            num_heads=query.shape[1],
            num_kv_heads=key.shape[1],
            key_dim=key.shape[3],
            value_dim=value.shape[3],
            scale=float(query.shape[3] ** -0.5 if scale is None else scale),
            window=window,
            chunk=chunk,
            soft_cap=passed.get("softcap"),
            sinks=passed.get("s_aux") is not None,
        )

    def _reach(self, layer: int, window: int | None) -> tuple[int | None, int | None]:
        """(window, chunk): what the layer passes, else what the configuration says of it: some have their window in the mask alone."""
        kinds = getattr(self.config, "layer_types", None)
        kind = kinds[layer] if kinds else "sliding_attention" if getattr(self.config, "sliding_window", None) else "full_attention"
        if kind == "chunked_attention":
            return window, self.config.attention_chunk_size
        if kind == "sliding_attention":
            return window or self.config.sliding_window, None
        if kind != "full_attention":
            raise Unsupported(f"layer {layer} is of kind {kind!r}, which is no attention over a KV cache")
        return window, None


def _check_mask(layer: int, spec: LayerSpec, mask: Any, context: int) -> None:
    """Hold a spec to the mask that the model itself asked for, at every position where one of them could change its mind."""
    if not isinstance(mask, _Mask):
        raise Unsupported(f"layer {layer} made its attention mask outside of transformers' mask interface, so what it sees is unknown")
    reaches = [reach for reach in (spec.window, spec.chunk) if reach is not None]
    edges = {0, 1, 2, context - 1, *(times * reach + offset for reach in reaches for times in (1, 2) for offset in (-1, 0, 1))}
    positions = torch.tensor(sorted(position for position in edges if position >= 0), device="cpu")
    query, key = positions[:, None], positions[None, :]
    zero = torch.zeros((), dtype=torch.int64, device="cpu")
    sees = key <= query
    if spec.window is not None:
        sees = sees & (key > query - spec.window)
    if spec.chunk is not None:
        sees = sees & (key // spec.chunk == query // spec.chunk)
    try:
        wanted = mask.sees(zero, zero, query, key)
    except Exception as error:
        raise Unsupported(f"what layer {layer} sees depends on more than positions: {error}") from error
    if not torch.equal(wanted.expand_as(sees).cpu(), sees):
        reach = f"window {spec.window}, chunk {spec.chunk}"
        raise Unsupported(f"layer {layer} has a mask of its own kind: it is not that of causal attention with {reach}")
