"""Weight sources that hold tokenizer files alone, a small sentencepiece vocabulary, and decoding in one go."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corekit.api import Tokenizer
from corekit.builtin.hf_tokenizer import HfTokenizer
from corekit.weights.gguf_tokenizer import tokenizer_files_of

SPACE = "\u2581"
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
LETTERS = "abcdn" + SPACE + "é世"


@dataclass
class Files:
    """What a tokenizer reads of a source."""

    document: Mapping[str, Any] | None
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = "test"
    config: Mapping[str, Any] = field(default_factory=dict)
    generation_config: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, bytes] = field(default_factory=dict)

    def tokenizer_files(self) -> dict[str, bytes]:
        own = {} if self.document is None else {"tokenizer.json": json.dumps(self.document).encode()}
        return own | {"tokenizer_config.json": json.dumps(self.settings).encode()} | dict(self.extra)


def streamed(tokenizer: Tokenizer, ids: Sequence[int], tail: Sequence[int] = (), **options: bool) -> list[str]:
    """What each push and the finish return."""
    decoder = tokenizer.start_decoding(tail, **options)
    return [*map(decoder.push, ids), decoder.finish()]


def vocabulary() -> dict[str, Any]:
    """<unk>, <s>, </s>, bytes, then pieces that joins of earlier ones make, each scored below the one before it."""
    draw = random.Random(4)
    pieces = list(LETTERS)
    joined: list[str] = []
    while len(joined) < 120:
        piece = draw.choice(pieces + joined) + draw.choice(pieces + joined)
        if len(piece) <= 6 and piece not in joined:
            joined.append(piece)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *joined, *pieces]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (len(joined) + len(pieces))]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(joined) + len(pieces))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


METADATA = vocabulary()


def sentencepiece_files(**changes: Any) -> Files:
    files = tokenizer_files_of(METADATA | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}, "test")
    return Files(json.loads(files["tokenizer.json"]), json.loads(files["tokenizer_config.json"]))


def sentencepiece(**changes: Any) -> HfTokenizer:
    return HfTokenizer(sentencepiece_files(**changes))  # type: ignore[arg-type]
