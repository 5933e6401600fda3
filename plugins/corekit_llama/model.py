"""The model `llama`: one native call between two calls of attention. Knows tensors and addresses; the maths is in csrc/llama."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from corekit.api import Attend, BuildContext, KvView, ModelInputs, ModelSpec, Shard, ThreadPool, WeightSource

from ._llama import Decoder, instruction_sets
from .architecture import Architecture, read_architecture
from .options import LlamaOptions
from .settings import Unsupported
from .tensors import FINAL_NORM
from .weights import Loaded, computed_on, load

Views = tuple[KvView | None, ...]


class LlamaModel:
    """Slot `model`. Hidden states between layers are float32 and stay with the decoder; what attention reads and gives is in the model's dtype."""

    def __init__(self, context: BuildContext, options: LlamaOptions) -> None:
        """Raises Unsupported, a ValueError, for what `refusals` names, and ValueError for kernels that this processor cannot run."""
        assert context.source is not None
        assert context.pool is not None
        self._architecture = read_architecture(context.source)
        self._spec = self._architecture.spec(context.source)
        self._pool: ThreadPool = context.pool
        self._dtype_name = context.dtype
        self._dtype: torch.dtype = getattr(torch, context.dtype)
        self._quantization = computed_on(context.source, context.quantization)
        self._num_positions = context.max_model_len or self._spec.context_length
        known = instruction_sets()
        if options.instruction_set not in ("auto", *known):
            raise Unsupported(f"[model.options] instruction_set = {options.instruction_set!r}: this processor runs {', '.join(known)}. Leave it at 'auto'")
        self._instruction_set = options.instruction_set
        self._decoder: Decoder | None = None
        self._views: Views | None = None
        self._passed = (True,) * len(self._spec.layers)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def uses_thread_pool(self) -> bool:
        return True

    @property
    def quantization(self) -> str:
        return self._quantization

    def load(self, weights: WeightSource, shard: Shard) -> None:
        if shard.size != 1:
            raise ValueError(f"the llama model runs on one rank, and {shard.size} were asked for. Use the executor in-process")
        if self._decoder is not None:
            raise ValueError("the weights are loaded already")
        loaded = load(weights, self._architecture, dtype=self._dtype_name, quantization=self._quantization, pool_address=self._pool.address)
        decoder = self._new_decoder(self._architecture)
        rotary = self._architecture.rotary
        decoder.set_rotary(rotary.frequencies, rotary.scale)
        for layer in range(self._architecture.num_layers):
            decoder.set_layer(layer, **_of_layer(loaded, self._architecture, layer))
        decoder.set_ends(embedding=loaded.matrices[-1, "embedding"], head=loaded.matrices.get((-1, "head")), final_norm=loaded.vectors[FINAL_NORM])
        self._decoder = decoder

    def _new_decoder(self, architecture: Architecture) -> Decoder:
        return Decoder(
            pool=self._pool.address,
            instruction_set=self._instruction_set,
            hidden_size=architecture.hidden_size,
            intermediate_size=architecture.intermediate_size,
            num_heads=architecture.num_heads,
            num_kv_heads=architecture.num_kv_heads,
            head_dim=architecture.head_dim,
            vocab_size=architecture.vocab_size,
            num_layers=architecture.num_layers,
            num_positions=self._num_positions,
            norm_epsilon=architecture.norm_epsilon,
            bf16=self._dtype is torch.bfloat16,
        )

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        decoder = self._ready()
        token_ids, positions = _step_ints(inputs.token_ids, "token_ids"), _step_ints(inputs.positions, "positions")
        num_tokens = token_ids.shape[0]
        if positions.shape[0] != num_tokens:
            raise ValueError(f"{num_tokens} token_ids came with {positions.shape[0]} positions")
        if attend.kv_views is not self._views:
            self._write_to(attend.kv_views)
        slots = None if self._views is None else _step_ints(attend.slot_mappings[0], "slot_mapping")
        if slots is not None and slots.shape[0] != num_tokens:
            raise ValueError(f"{num_tokens} token_ids came with {slots.shape[0]} slots")
        shape = (num_tokens, self._architecture.num_heads, self._architecture.head_dim)
        query = torch.empty(shape, dtype=self._dtype)
        at, passed, last = query.data_ptr(), self._passed, len(self._passed) - 1
        key, value = self._new_key_and_value(num_tokens) if passed[0] else (None, None)
        decoder.start(token_ids.data_ptr(), positions.data_ptr(), 0 if slots is None else slots.data_ptr(), num_tokens, at, *_addresses(key, value))
        for layer in range(last):
            gave = self._checked(attend(layer, query, key, value), shape)
            if passed[layer + 1]:
                key, value = self._new_key_and_value(num_tokens)
                decoder.advance(layer, gave.data_ptr(), at, *_addresses(key, value))
            else:
                key = value = None
                decoder.advance(layer, gave.data_ptr(), at, 0, 0)
        hidden = torch.empty((num_tokens, self._architecture.hidden_size), dtype=torch.float32)
        gave = self._checked(attend(last, query, key, value), shape)
        decoder.finish(gave.data_ptr(), hidden.data_ptr())
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        rows = hidden.to(torch.float32).contiguous()
        if rows.ndim != 2 or rows.shape[1] != self._architecture.hidden_size:
            raise ValueError(f"hidden states are {tuple(hidden.shape)}; [rows, {self._architecture.hidden_size}] are needed")
        logits = torch.empty((rows.shape[0], self._architecture.vocab_size), dtype=torch.float32)
        if rows.shape[0]:
            self._ready().logits(rows.data_ptr(), rows.shape[0], logits.data_ptr())
        return logits

    def _ready(self) -> Decoder:
        if self._decoder is None:
            raise ValueError("the weights are not loaded: `load` comes first")
        return self._decoder

    def _write_to(self, views: Views | None) -> None:
        """From now on keys and values go to these pools; they are the same object in every step."""
        self._ready().set_kv(views or ())
        self._passed = tuple(view is None for view in views) if views else (True,) * len(self._spec.layers)
        self._views = views

    def _new_key_and_value(self, num_tokens: int) -> tuple[Tensor, Tensor]:
        shape = (num_tokens, self._architecture.num_kv_heads, self._architecture.head_dim)
        return torch.empty(shape, dtype=self._dtype), torch.empty(shape, dtype=self._dtype)

    def _checked(self, gave: Tensor, shape: tuple[int, ...]) -> Tensor:
        if gave.shape != shape or gave.dtype is not self._dtype:
            raise ValueError(f"attention gave {gave.dtype} {tuple(gave.shape)}, and the query was {self._dtype} {shape}")
        return gave if gave.is_contiguous() else gave.contiguous()


def _step_ints(tensor: Tensor, name: str) -> Tensor:
    if tensor.dtype is not torch.int64 or tensor.ndim != 1 or tensor.device.type != "cpu":
        raise ValueError(f"{name} are {tensor.dtype} {tuple(tensor.shape)} on {tensor.device}; int64 of one dimension on the CPU are needed")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _addresses(key: Tensor | None, value: Tensor | None) -> tuple[int, int]:
    return (0, 0) if key is None or value is None else (key.data_ptr(), value.data_ptr())


def _of_layer(loaded: Loaded, architecture: Architecture, layer: int) -> dict[str, Any]:
    """What `Decoder.set_layer` takes."""
    of, vectors = f"model.layers.{layer}", loaded.vectors
    weights: dict[str, Any] = {part: loaded.matrices[layer, part] for part in ("qkv", "output", "gate_up", "down")}
    weights |= {"input_norm": vectors[f"{of}.input_layernorm.weight"], "mlp_norm": vectors[f"{of}.post_attention_layernorm.weight"]}
    weights["rotates"] = architecture.rotates[layer]
    if architecture.head_norms:
        weights |= {"query_norm": vectors[f"{of}.self_attn.q_norm.weight"], "key_norm": vectors[f"{of}.self_attn.k_norm.weight"]}
    if architecture.qkv_bias:
        weights["qkv_bias"] = np.concatenate([vectors[f"{of}.self_attn.{part}_proj.bias"] for part in "qkv"])
    if architecture.output_bias:
        weights["output_bias"] = vectors[f"{of}.self_attn.o_proj.bias"]
    if architecture.mlp_bias:
        weights |= {f"{part}_bias": vectors[f"{of}.mlp.{part}_proj.bias"] for part in ("gate", "up", "down")}
    return weights
