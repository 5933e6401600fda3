"""From a configuration to what the decoder computes: sizes, biases, norms, windows, rotary positions, and the spec.

Defaults and names of settings are those of transformers, family by family, so that both providers mean the same model. Knows no
weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corekit.api import LayerSpec, ModelSpec, WeightSource, eos_token_ids

from .rotary import Rotary, read_rotary
from .settings import Settings, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What one `model_type` has, and what its configuration leaves out when it is so."""

    class_name: str
    qkv_bias: bool | None = None
    """None: attention_bias says so, and then the output projection has one too."""
    mlp_bias: bool = False
    """Whether mlp_bias is read."""
    head_norms: bool = False
    head_dim: int | None = None
    """None: hidden_size / num_attention_heads."""
    window: int | None = None
    """Where the configuration does not name sliding_window."""
    switched_window: bool = False
    """Only use_sliding_window turns the window on, and layers may differ."""
    skips_rotation: bool = False
    """no_rope_layers names layers without positions, and they alone have the window."""
    tied: bool = False
    theta: float = 10000.0


FAMILIES: Mapping[str, Family] = {
    "llama": Family(class_name="LlamaForCausalLM", mlp_bias=True),
    "mistral": Family(class_name="MistralForCausalLM", qkv_bias=False, window=4096),
    "qwen2": Family(class_name="Qwen2ForCausalLM", qkv_bias=True, window=4096, switched_window=True),
    "qwen3": Family(class_name="Qwen3ForCausalLM", head_norms=True, head_dim=128, window=4096, switched_window=True),
    "smollm3": Family(class_name="SmolLM3ForCausalLM", mlp_bias=True, switched_window=True, skips_rotation=True, tied=True, theta=2e6),
}
LAYERS_BEFORE_WINDOWS = 28
"""max_window_layers where it is not named."""
MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM = 1 << 12, 1 << 14, 1 << 14
"""A configuration is a stranger's: what is made for each layer, or each pair of a head, must not fill the memory before weights are seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One model's maths."""

    class_name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_length: int
    norm_epsilon: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    tied_head: bool
    rotary: Rotary
    windows: tuple[int | None, ...]
    """Of each layer."""
    rotates: tuple[bool, ...]
    """Whether a layer knows positions."""

    @property
    def num_layers(self) -> int:
        return len(self.windows)

    def spec(self, source: WeightSource) -> ModelSpec:
        return ModelSpec(
            architecture=self.class_name,
            layers=tuple(self._layer(window) for window in self.windows),
            vocab_size=self.vocab_size,
            context_length=self.context_length,
            hidden_size=self.hidden_size,
            tied_head=self.tied_head,
            eos_token_ids=eos_token_ids(source),
        )

    def _layer(self, window: int | None) -> LayerSpec:
        return LayerSpec(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            scale=self.head_dim**-0.5,
            window=window,
        )


def read_architecture(source: WeightSource) -> Architecture:
    """Raises Unsupported with the reason. Reads no weights."""
    if source.format == "none":
        raise Unsupported("the source has no weights; llama runs models that have some")
    config = source.config
    family = _family(config)
    settings = Settings(config, "its configuration")
    if settings.raw.get("hidden_act", "silu") not in ("silu", "swish", None):
        raise Unsupported(f"hidden_act is {config['hidden_act']!r}; only silu is known here")
    num_layers, num_heads = settings.count("num_hidden_layers", most=MAX_LAYERS), settings.count("num_attention_heads", most=MAX_HEADS)
    hidden_size = settings.count("hidden_size")
    num_kv_heads = settings.count("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise Unsupported(f"{num_kv_heads} KV heads (num_key_value_heads) cannot be shared by {num_heads} heads (num_attention_heads)")
    head_dim = settings.count("head_dim", family.head_dim or max(1, hidden_size // num_heads), most=MAX_HEAD_DIM)
    if head_dim % 2:
        raise Unsupported(f"head_dim is {head_dim}; halves of a head are rotated against each other, so it must be even")
    attention_bias = family.qkv_bias is None and settings.flag("attention_bias", False)
    rotates = _rotates(family, settings, num_layers)
    return Architecture(
        class_name=family.class_name,
        vocab_size=settings.count("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=settings.count("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context_length=settings.count("max_position_embeddings"),
        norm_epsilon=settings.number("rms_norm_eps", 1e-6),
        qkv_bias=attention_bias or family.qkv_bias is True,
        output_bias=attention_bias,
        mlp_bias=family.mlp_bias and settings.flag("mlp_bias", False),
        head_norms=family.head_norms,
        tied_head=settings.flag("tie_word_embeddings", family.tied),
        rotary=read_rotary(config, head_dim, family.theta),
        windows=_windows(family, settings, rotates),
        rotates=rotates,
    )


def _family(config: Mapping[str, Any]) -> Family:
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise Unsupported(f"model_type {model_type!r:.60} is not one of {', '.join(FAMILIES)}")
    if "quantization_config" in config:
        raise Unsupported("its weights are quantized (quantization_config), which is not unpacked here")
    if "vision_config" in config or "audio_config" in config:
        raise Unsupported("it reads more than text; text-only models run here")
    declared = config.get("architectures") or (family.class_name,)
    if family.class_name not in declared:
        raise Unsupported(f"{' or '.join(map(str, declared))} is not {family.class_name}, the language model of its family")
    return family


def _rotates(family: Family, settings: Settings, num_layers: int) -> tuple[bool, ...]:
    if not family.skips_rotation:
        return (True,) * num_layers
    named = settings.raw.get("no_rope_layers")
    if named is None:
        interval = settings.count("no_rope_layer_interval", 4)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if not isinstance(named, Sequence) or len(named) != num_layers or any(flag not in (0, 1) for flag in named):
        raise Unsupported(f"no_rope_layers is {named!r:.60}; 0 or 1 for each of {num_layers} layers is needed")
    return tuple(bool(flag) for flag in named)


def _windows(family: Family, settings: Settings, rotates: tuple[bool, ...]) -> tuple[int | None, ...]:
    """The window of each layer. What names layers otherwise than the family's own code reads them is refused."""
    num_layers, raw = len(rotates), settings.raw
    on = not family.switched_window or settings.flag("use_sliding_window", False)
    named = raw.get("sliding_window", family.window)
    window = settings.count("sliding_window", family.window) if on and named is not None else None
    if not family.switched_window and family.window is None and window is not None:
        raise Unsupported(f"sliding_window is {window}, and {family.class_name} has no windows")
    if family.skips_rotation:
        windowed = [window is not None and not turned for turned in rotates]
    elif family.switched_window:
        first = raw.get("max_window_layers")
        first = LAYERS_BEFORE_WINDOWS if first is None else first
        if type(first) is not int:
            raise Unsupported(f"max_window_layers is {first!r:.60}; a whole number is needed")
        windowed = [window is not None and layer >= first for layer in range(num_layers)]
    else:
        windowed = [window is not None] * num_layers
    kinds = raw.get("layer_types")
    if kinds is not None:
        windowed = _windowed(kinds, windowed, window, may_differ=family.switched_window)
    return tuple(window if narrow else None for narrow in windowed)


def _windowed(kinds: Any, otherwise: list[bool], window: int | None, *, may_differ: bool) -> list[bool]:
    if not isinstance(kinds, Sequence) or len(kinds) != len(otherwise):
        raise Unsupported(f"layer_types does not name a kind for each of {len(otherwise)} layers")
    unknown = sorted({str(kind) for kind in kinds} - {"full_attention", "sliding_attention"})
    if unknown:
        raise Unsupported(f"it has layers of kind {', '.join(unknown)}; full_attention and sliding_attention are known here")
    windowed = [kind == "sliding_attention" for kind in kinds]
    if any(windowed) and window is None:
        raise Unsupported("layer_types names layers with a window, and sliding_window, or use_sliding_window, names none")
    if not may_differ and windowed != otherwise:
        raise Unsupported("layer_types and sliding_window say different things of its layers")
    return windowed
