"""What Hugging Face calls things, from what GGUF calls them: the configuration and the names of tensors.

Only architectures whose tensors map one to one are known here; others are refused by name. Knows nothing of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SourceError

TOP: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?([a-z_]+)\.(weight|bias)")
ROPE_FACTORS = "rope_freqs.weight"
NO_ID = (-1, 2**32 - 1)
"""No token; the second is the first in the unsigned numbers of the format."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture: `interleaved` says that the converter reordered the rows of q and k for rotation of neighbours."""

    class_name: str
    interleaved: bool


FAMILIES: Mapping[str, Family] = {
    "llama": Family(class_name="LlamaForCausalLM", interleaved=True),
    "qwen2": Family(class_name="Qwen2ForCausalLM", interleaved=False),
    "qwen3": Family(class_name="Qwen3ForCausalLM", interleaved=False),
}


def family_of(metadata: Mapping[str, Any], where: str) -> Family:
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in FAMILIES:
        raise SourceError(
            f"{where}: the architecture {architecture!r:.60} cannot be read from a GGUF file. Those that can: {', '.join(sorted(FAMILIES))}. "
            "Use the model's safetensors folder or hub id instead."
        )
    return FAMILIES[architecture]


def hf_name(name: str, where: str) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    found = NAME.fullmatch(name)
    if found:
        block, part, kind = found.groups()
        if block is None and part in TOP:
            return f"{TOP[part]}.{kind}"
        if block is not None and part in BLOCK:
            return f"model.layers.{block}.{BLOCK[part]}.{kind}"
    raise SourceError(f"{where}: tensor {name!r} has no counterpart in the model's architecture. Likely a variant of it; use its safetensors instead.")


@dataclass(frozen=True, slots=True)
class _Keys:
    """The metadata of one architecture, checked for type and range as it is read."""

    metadata: Mapping[str, Any]
    architecture: str
    where: str

    def number(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if type(value) is not int or not low <= value <= high:
            raise SourceError(
                f"{self.where}: {self.architecture}.{key} is {value!r:.60}; a whole number from {low} to {high} is needed. The file is damaged or unusual."
            )
        return value

    def real(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if type(value) not in (int, float) or not low <= value <= high:
            raise SourceError(
                f"{self.where}: {self.architecture}.{key} is {value!r:.60}; a number from {low} to {high} is needed. The file is damaged or unusual."
            )
        return float(value)


def config_of(metadata: Mapping[str, Any], shapes: Mapping[str, Sequence[int]], where: str) -> dict[str, Any]:
    """The equal of config.json; `shapes` are those of the file's tensors by GGUF name."""
    family = family_of(metadata, where)
    architecture = metadata["general.architecture"]
    keys = _Keys(metadata, architecture, where)
    if metadata.get(f"{architecture}.expert_count", 0):
        raise SourceError(f"{where}: a mixture of experts in a GGUF file cannot be read. Use the model's safetensors instead.")
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise SourceError(f"{where}: there is no matrix token_embd.weight. Likely not a language model, or one part of several.")
    vocab_size, hidden_size = shapes["token_embd.weight"]
    num_heads = keys.number("attention.head_count", 1, 1 << 12)
    head_dim = keys.number("attention.key_length", 2, 1 << 12, hidden_size // num_heads)
    if keys.number("attention.value_length", 2, 1 << 12, head_dim) != head_dim or keys.number("rope.dimension_count", 2, 1 << 12, head_dim) != head_dim:
        raise SourceError(
            f"{where}: keys, values and their rotation have different widths, which {architecture} does not have. Use the model's safetensors instead."
        )
    return {
        "architectures": [family.class_name],
        "model_type": architecture,
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": keys.number("feed_forward_length", 1, 1 << 20),
        "num_hidden_layers": keys.number("block_count", 1, 1 << 12),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.number("attention.head_count_kv", 1, num_heads, num_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": keys.number("context_length", 1, 1 << 26),
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon", 1e-12, 1.0),
        "rope_theta": keys.real("rope.freq_base", 1.0, 1e12, 10000.0),
        "attention_bias": "blk.0.attn_q.bias" in shapes,
        "mlp_bias": "blk.0.ffn_gate.bias" in shapes,
        "tie_word_embeddings": "output.weight" not in shapes,
        **_rope_scaling(keys),
        **_special_ids(metadata, vocab_size, where),
    }


def _rope_scaling(keys: _Keys) -> dict[str, Any]:
    kind = keys.metadata.get(f"{keys.architecture}.rope.scaling.type", "none")
    if kind == "none":
        return {}
    factor = keys.real("rope.scaling.factor", 1.0, 1e4)
    if kind == "linear":
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if kind == "yarn" and f"{keys.architecture}.rope.scaling.attn_factor" not in keys.metadata:
        original = keys.number("rope.scaling.original_context_length", 1, 1 << 26)
        return {"rope_scaling": {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}}
    raise SourceError(
        f"{keys.where}: rotary scaling {kind!r} in a GGUF file cannot be read (none, linear and plain yarn can). Use the model's safetensors instead."
    )


def _special_ids(metadata: Mapping[str, Any], vocab_size: int, where: str) -> dict[str, Any]:
    ids = {name: special_id(metadata, key, vocab_size, where) for name, key in (("bos_token_id", "bos"), ("eos_token_id", "eos"), ("pad_token_id", "padding"))}
    return {name: index for name, index in ids.items() if index is not None}


def eos_ids_of(metadata: Mapping[str, Any], vocab_size: int, where: str) -> list[int]:
    """Ids that end an answer: end of text, of a turn, of a message."""
    found = (special_id(metadata, key, vocab_size, where) for key in ("eos", "eot", "eom"))
    return list(dict.fromkeys(index for index in found if index is not None))


def special_id(metadata: Mapping[str, Any], key: str, vocab_size: int, where: str) -> int | None:
    """The id of `bos`, `eos` ...; None where the file names none, which some writers do by -1."""
    value = metadata.get(f"tokenizer.ggml.{key}_token_id")
    if value is None or value in NO_ID:
        return None
    if type(value) is not int or not 0 <= value < vocab_size:
        raise SourceError(
            f"{where}: tokenizer.ggml.{key}_token_id is {value!r}, and there are {vocab_size} tokens, counted from 0. "
            "The file is damaged or was converted wrongly; fetch it again, or use the model's safetensors."
        )
    return value
