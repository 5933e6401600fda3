"""Rotary positions: by how much each pair of a head turns from one position to the next, from a model's configuration.

The kinds are those whose turns depend on the position alone. Formulas: Su et al. 2021 (arXiv 2104.09864); linear: Chen et al.
2023 (2306.15595); yarn: Peng et al. 2023 (2309.00071); llama3 and all names of settings:
https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .settings import Settings, Unsupported

LENGTH_DEPENDENT = ("dynamic", "longrope")


@dataclass(frozen=True, slots=True)
class Rotary:
    """What a head's halves are turned by."""

    frequencies: tuple[float, ...]
    """Radians per position, head_dim / 2 of them."""
    scale: float = 1.0
    """Cosines and sines are multiplied by it."""


def read_rotary(config: Mapping[str, Any], head_dim: int, default_theta: float) -> Rotary:
    """Raises Unsupported for kinds whose turns depend on more than the position, and for what is unknown."""
    parameters = Settings(_parameters(config), "its rotary settings (rope_parameters or rope_scaling)")
    kind = parameters.raw.get("rope_type", parameters.raw.get("type", "default"))
    if kind in LENGTH_DEPENDENT:
        raise Unsupported(f"its rotary positions are of type {kind!r}: they change with the longest sequence of a batch, so neighbours would matter")
    theta = parameters.number("rope_theta", _default(config, "rope_theta", default_theta))
    part = parameters.number("partial_rotary_factor", _default(config, "partial_rotary_factor", 1.0))
    if part != 1:
        raise Unsupported(f"partial_rotary_factor is {part:g}; heads of its family are rotated whole")
    try:
        rotary = _rotary(kind, theta, head_dim, parameters, config)
    except Unsupported:
        raise
    except (ArithmeticError, ValueError) as error:  # ValueError: a logarithm of nothing
        raise Unsupported(f"its rotary settings give no turns: {error}") from error
    if not all(map(math.isfinite, (*rotary.frequencies, rotary.scale))):
        raise Unsupported("its rotary settings give turns that are not finite")
    return rotary


def _rotary(kind: Any, theta: float, head_dim: int, parameters: Settings, config: Mapping[str, Any]) -> Rotary:
    plain = [theta ** (-2 * at / head_dim) for at in range(head_dim // 2)]
    if kind == "default":
        return Rotary(tuple(plain))
    if kind == "linear":
        factor = parameters.number("factor")
        return Rotary(tuple(frequency / factor for frequency in plain))
    context = Settings(config, "its configuration").number("max_position_embeddings")
    original = parameters.number("original_max_position_embeddings", context)
    if config.get("original_max_position_embeddings") is not None:  # the configuration's own rules over its rotary settings'
        original = Settings(config, "its configuration").number("original_max_position_embeddings")
    if kind == "llama3":
        factor = parameters.number("factor")
        return Rotary(tuple(_llama3(frequency, factor, original, parameters) for frequency in plain))
    if kind == "yarn":
        return _yarn(plain, head_dim, theta, parameters.number("factor", context / original), original, parameters)
    raise Unsupported(f"its rotary positions are of type {kind!r}, which is not known here (default, linear, llama3 and yarn are)")


def _parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(found, Mapping) or any(isinstance(value, Mapping) for value in found.values()):
        raise Unsupported("its rotary settings (rope_parameters or rope_scaling) are not one table for all layers")
    return found


def _default(config: Mapping[str, Any], name: str, otherwise: float) -> Any:
    value = config.get(name)
    return otherwise if value is None else value


def _llama3(frequency: float, factor: float, original: float, parameters: Settings) -> float:
    """Long waves are stretched, short ones left, and those between blended."""
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    turns = original * frequency / (2 * math.pi)
    if turns < low:
        return frequency / factor
    if turns > high or low == high:
        return frequency
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def _yarn(plain: list[float], head_dim: int, theta: float, factor: float, original: float, parameters: Settings) -> Rotary:
    """Pairs that turn often within the original context are left, those that turn seldom are stretched, with a ramp between."""

    def pair_that_turns(times: float) -> float:
        return head_dim * math.log(original / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = pair_that_turns(parameters.number("beta_fast", 32.0) or 32.0)
    high = pair_that_turns(parameters.number("beta_slow", 1.0) or 1.0)
    if parameters.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    frequencies = []
    for at, frequency in enumerate(plain):
        stretched = min(max((at - low) / (high - low), 0.0), 1.0)
        frequencies.append(frequency / factor * stretched + frequency * (1 - stretched))
    return Rotary(tuple(frequencies), _yarn_scale(factor, parameters))


def _yarn_scale(factor: float, parameters: Settings) -> float:
    def scale(times: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0

    if parameters.raw.get("attention_factor") is not None:
        return parameters.number("attention_factor")
    mscale, all_dims = parameters.number("mscale", 0.0), parameters.number("mscale_all_dim", 0.0)
    return scale(mscale) / scale(all_dims) if mscale and all_dims else scale(1.0)
