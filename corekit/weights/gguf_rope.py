"""Llama 3.1's rotary scaling, recognised in the divisors that a GGUF file stores instead of its parameters.

The published models share three of the four parameters; the fourth is the largest divisor. The divisors are computed
from them and compared, so that a variant is refused instead of being read wrongly.
Formula: https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_rope_utils.py (llama3).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, pi
from typing import Any

from .errors import SourceError

LOW_FREQ_FACTOR, HIGH_FREQ_FACTOR, ORIGINAL_CONTEXT = 1.0, 4.0, 8192
TOLERANCE = 1e-3
MAX_FACTOR = 1e4


def llama3_scaling(divisors: Sequence[float], rope_theta: float, where: str) -> dict[str, Any]:
    """`rope_scaling` of config.json. Raises SourceError when the divisors are not of that kind."""
    sane = all(isfinite(divisor) and 0 < divisor <= MAX_FACTOR for divisor in divisors)
    factor = max(1.0, round(max(divisors), 3)) if sane else 1.0
    expected = _divisors(factor, rope_theta, len(divisors))
    if not sane or not all(abs(found - wanted) <= TOLERANCE * wanted for found, wanted in zip(divisors, expected, strict=True)):
        raise SourceError(
            f"{where}: the rotary factors stored in the file (rope_freqs.weight) are not those of Llama 3.1 and its like. Use the model's safetensors instead."
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW_FREQ_FACTOR,
        "high_freq_factor": HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
    }


def _divisors(factor: float, rope_theta: float, count: int) -> list[float]:
    """Long waves are slowed down by `factor`, short ones not at all, those between by a mixture."""
    found = []
    for index in range(count):
        turns = ORIGINAL_CONTEXT / (2 * pi * rope_theta ** (index / count))  # how often the wave fits into the original context
        kept = min(1.0, max(0.0, (turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)))
        found.append(1 / ((1 - kept) / factor + kept))
    return found
