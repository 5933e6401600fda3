"""Formats of tensors in a GGUF file, by the number that stands for them: name, elements of a block, bytes of a block.

Those that every version of the `gguf` package knows and dequantizes are written down here, since its import takes as long as
reading a file's header; it is asked about the others. Knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class GgufType(NamedTuple):
    name: str
    block: int
    block_bytes: int


KNOWN: Mapping[int, GgufType] = {
    0: GgufType("F32", 1, 4),
    1: GgufType("F16", 1, 2),
    2: GgufType("Q4_0", 32, 18),
    3: GgufType("Q4_1", 32, 20),
    6: GgufType("Q5_0", 32, 22),
    7: GgufType("Q5_1", 32, 24),
    8: GgufType("Q8_0", 32, 34),
    10: GgufType("Q2_K", 256, 84),
    11: GgufType("Q3_K", 256, 110),
    12: GgufType("Q4_K", 256, 144),
    13: GgufType("Q5_K", 256, 176),
    14: GgufType("Q6_K", 256, 210),
    16: GgufType("IQ2_XXS", 256, 66),
    17: GgufType("IQ2_XS", 256, 74),
    18: GgufType("IQ3_XXS", 256, 98),
    19: GgufType("IQ1_S", 256, 50),
    20: GgufType("IQ4_NL", 32, 18),
    21: GgufType("IQ3_S", 256, 110),
    22: GgufType("IQ2_S", 256, 82),
    23: GgufType("IQ4_XS", 256, 136),
    29: GgufType("IQ1_M", 256, 56),
    30: GgufType("BF16", 1, 2),
    34: GgufType("TQ1_0", 256, 54),
    35: GgufType("TQ2_0", 256, 66),
}


def type_of(type_id: int) -> GgufType | None:
    """None: nobody knows it."""
    if type_id in KNOWN:
        return KNOWN[type_id]
    from gguf.constants import GGML_QUANT_SIZES

    return next((GgufType(kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items() if kind == type_id), None)


def can_dequantize(type_id: int) -> bool:
    """Whether the package turns blocks of a type that somebody knows into numbers."""
    if type_id in KNOWN:
        return True
    import numpy as np
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(type_id)
    try:
        dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), dtype=np.uint8), kind)
    except NotImplementedError:
        return False
    return True
