"""Small model files for the tests of this room, written with the formats' own libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType as Kind

HIDDEN, HEADS, KV_HEADS, WIDTH, LAYERS, VOCAB = 64, 4, 2, 96, 2, 300


def llama_tensors(seed: int = 0, *, tied: bool = True, bias: bool = False) -> dict[str, npt.NDArray[np.float32]]:
    """A tiny Llama's tensors by their Hugging Face names."""
    draw = np.random.default_rng(seed)
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + "input_layernorm.weight": (HIDDEN,), at + "post_attention_layernorm.weight": (HIDDEN,)}
        shapes |= {at + "self_attn.q_proj.weight": (HIDDEN, HIDDEN), at + "self_attn.o_proj.weight": (HIDDEN, HIDDEN)}
        shapes |= {at + "self_attn.k_proj.weight": (kv, HIDDEN), at + "self_attn.v_proj.weight": (kv, HIDDEN)}
        shapes |= {at + "mlp.gate_proj.weight": (WIDTH, HIDDEN), at + "mlp.up_proj.weight": (WIDTH, HIDDEN), at + "mlp.down_proj.weight": (HIDDEN, WIDTH)}
        if bias:
            shapes |= {at + "self_attn.q_proj.bias": (HIDDEN,), at + "self_attn.k_proj.bias": (kv,), at + "self_attn.v_proj.bias": (kv,)}
    return {name: draw.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[part]}.{kind}"
    return f"{GGUF_NAMES[stem]}.{kind}"


def neighbours(array: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """What a converter does to q and k of the llama family: entry j and its partner j + half of a head become neighbours."""
    half = len(array) // num_heads // 2
    rows = [head * 2 * half + which * half + pair for head in range(num_heads) for pair in range(half) for which in (0, 1)]
    return array[rows]


def write_gguf(
    path: Path,
    tensors: dict[str, npt.NDArray[np.float32]],
    *,
    architecture: str = "llama",
    types: dict[str, Kind] | None = None,
    extra: dict[str, Any] | None = None,
    raw: dict[str, npt.NDArray[Any]] | None = None,
) -> Path:
    """`types` by Hugging Face name; `extra` metadata by full key; `raw` tensors by GGUF name, as they are."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    for key, value in (extra or {}).items():
        _add(writer, key, value)
    for name, array in tensors.items():
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = neighbours(array, HEADS if ".q_proj." in name else KV_HEADS)
        kind = (types or {}).get(name, Kind.F32)
        writer.add_tensor(gguf_name(name), array if kind is Kind.F32 else gguf.quants.quantize(array, kind), raw_dtype=kind)
    for name, array in (raw or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def write_folder(folder: Path, tensors: dict[str, torch.Tensor], *, config: dict[str, Any] | None = None, shards: int = 1) -> Path:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama"}))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = dict(list(tensors.items())[shard::shards])
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
