"""Dense causal attention in float64, without blocks: what attention backends are held to. Owned by the kit of slot `attention_backend`."""

from __future__ import annotations

import torch
from torch import Tensor

from corekit.api import LayerSpec


def dense_attention(query: Tensor, keys: Tensor, values: Tensor, spec: LayerSpec, sinks: Tensor | None = None) -> Tensor:
    """One row: query [q, num_heads, key_dim] are the last positions of keys [length, num_kv_heads, key_dim] and values -> [q, num_heads, value_dim].

    Head h reads KV head h // (num_heads // num_kv_heads). A sink is one more score in the sum of the softmax, without a value.
    """
    count, length = len(query), len(keys)
    group = spec.num_heads // spec.num_kv_heads
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys.double().repeat_interleave(group, 1)) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    at, position = torch.arange(length), torch.arange(length - count, length)[:, None]
    seen = at <= position
    if spec.window is not None:
        seen &= at > position - spec.window
    if spec.chunk is not None:
        seen &= at // spec.chunk == position // spec.chunk
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[:, None, None].expand(-1, count, 1)], -1)
    weights = scores.softmax(-1)[..., :length]
    return torch.einsum("hqk,khd->qhd", weights, values.double().repeat_interleave(group, 1))
