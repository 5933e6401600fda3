"""Weight sources that hold tokenizer files alone, and decoding in one go."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from corekit.api import Tokenizer


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
