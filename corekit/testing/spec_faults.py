"""What is wrong with a model's spec, whatever the model. Owned by the kit of slot `model`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from corekit.api import ModelSpec


def spec_faults(spec: ModelSpec) -> Sequence[str]:
    checks: list[tuple[bool, str]] = [
        (len(spec.layers) > 0, "no layers"),
        (spec.vocab_size > 0 and spec.context_length > 0 and spec.hidden_size > 0, "vocab_size, context_length and hidden_size are at least 1"),
        (all(0 <= id < spec.vocab_size for id in spec.eos_token_ids), f"eos_token_ids {spec.eos_token_ids} are not all below vocab_size {spec.vocab_size}"),
        (spec.dtype is None or _is_floating(spec.dtype), f"dtype {spec.dtype!r} is no floating dtype of torch"),
    ]
    for index, layer in enumerate(spec.layers):
        sizes = (layer.num_heads, layer.num_kv_heads, layer.key_dim, layer.value_dim)
        source = layer.kv_from_layer
        checks += [
            (min(sizes) > 0, f"layer {index}: heads and widths {sizes} are at least 1"),
            (
                layer.num_kv_heads > 0 and layer.num_heads % layer.num_kv_heads == 0,
                f"layer {index}: {layer.num_kv_heads} KV heads cannot be shared by {layer.num_heads} heads",
            ),
            (layer.scale == layer.scale and abs(layer.scale) != float("inf"), f"layer {index}: scale is {layer.scale}"),
            (
                all(reach is None or reach > 0 for reach in (layer.window, layer.chunk, layer.soft_cap)),
                f"layer {index}: window, chunk and soft_cap are above 0, or None",
            ),
            (
                source is None or (0 <= source < index and spec.layers[source].kv_from_layer is None),
                f"layer {index}: kv_from_layer {source} is no earlier layer that writes",
            ),
        ]
    return [what for holds, what in checks if not holds]


def _is_floating(name: str) -> bool:
    dtype = getattr(torch, name, None)
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point
