"""Which tensors a model of an architecture has, in what shape, and which of them become one matrix. Names are those of Hugging Face."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .architecture import Architecture

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
FINAL_NORM = "model.norm.weight"
UNREAD = "rotary_emb.inv_freq"
"""Ending of tensors that old files have and nobody reads: they follow from the configuration."""
MAX_NAMED = 8
"""Tensors named in one error."""


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that become one matrix, in this order."""

    layer: int
    """-1: of no layer."""
    part: str
    """ "qkv", "output", "gate_up", "down", "embedding", "head" or "ends": both, which are one matrix if they are equal."""
    names: tuple[str, ...]
    interleaved: bool = False


def matrices(architecture: Architecture, names: Sequence[str]) -> tuple[Group, ...]:
    """`names`: those that the source has; a head that is tied may be there all the same."""
    if architecture.tied_head:
        groups = [Group(-1, "ends", (EMBEDDING, HEAD)) if HEAD in names else Group(-1, "embedding", (EMBEDDING,))]
    else:
        groups = [Group(-1, "embedding", (EMBEDDING,)), Group(-1, "head", (HEAD,))]
    for layer in range(architecture.num_layers):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        groups += [
            Group(layer, "qkv", tuple(f"{attention}.{part}_proj.weight" for part in "qkv")),
            Group(layer, "output", (f"{attention}.o_proj.weight",)),
            Group(layer, "gate_up", (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"), interleaved=True),
            Group(layer, "down", (f"{mlp}.down_proj.weight",)),
        ]
    return tuple(groups)


def shapes(architecture: Architecture, names: Sequence[str]) -> Mapping[str, tuple[int, ...]]:
    """Every tensor that the model reads."""
    hidden = architecture.hidden_size
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (architecture.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not architecture.tied_head or HEAD in names:
        found[HEAD] = (architecture.vocab_size, hidden)
    for layer in range(architecture.num_layers):
        found.update(_of_layer(architecture, f"model.layers.{layer}"))
    return found


def _of_layer(architecture: Architecture, layer: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner, head_dim = architecture.hidden_size, architecture.intermediate_size, architecture.head_dim
    query, key = architecture.num_heads * head_dim, architecture.num_kv_heads * head_dim
    linear = {
        "self_attn.q_proj": (query, hidden, architecture.qkv_bias),
        "self_attn.k_proj": (key, hidden, architecture.qkv_bias),
        "self_attn.v_proj": (key, hidden, architecture.qkv_bias),
        "self_attn.o_proj": (hidden, query, architecture.output_bias),
        "mlp.gate_proj": (inner, hidden, architecture.mlp_bias),
        "mlp.up_proj": (inner, hidden, architecture.mlp_bias),
        "mlp.down_proj": (hidden, inner, architecture.mlp_bias),
    }
    for name, (num_outputs, num_inputs, bias) in linear.items():
        yield f"{layer}.{name}.weight", (num_outputs, num_inputs)
        if bias:
            yield f"{layer}.{name}.bias", (num_outputs,)
    yield f"{layer}.input_layernorm.weight", (hidden,)
    yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    if architecture.head_norms:
        yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (head_dim,)


@dataclass(frozen=True, slots=True)
class Faults:
    """What is wrong with the tensors of a source, by their names."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def told(self) -> str:
        """One phrase; empty: nothing is wrong."""
        kinds = {"missing": self.missing, "unexpected": self.unexpected, "of another shape": self.misshapen}
        return "; ".join(f"{len(names)} {kind}: {_some(sorted(names))}" for kind, names in kinds.items() if names)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:MAX_NAMED]) + (f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else "")
