"""The bounds of fields as JSON schema says them. The checks themselves stand where fields are read; a test holds both together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.api.types import (
    MAX_BAD_WORDS,
    MAX_BIASED_IDS,
    MAX_LISTED_IDS,
    MAX_RETENTION_SECONDS,
    MAX_SALT_CHARS,
    MAX_STOP_CHARS,
    MAX_STOP_IDS,
    MAX_STOPS,
    MAX_TOP_LOGPROBS,
)

from .ids import REQUEST_ID
from .messages import MAX_MESSAGES
from .options import HttpOptions
from .tokens import MAX_TEXT_CHARS, MAX_TOKENS

_INT32 = 2**31 - 1
_TOP: Mapping[str, Any] = {"minimum": 0, "maximum": MAX_TOP_LOGPROBS}
_WORDS: Mapping[str, Any] = {"minLength": 1, "maxLength": MAX_STOP_CHARS}


def field_limits(options: HttpOptions) -> Mapping[str, Mapping[str, Any]]:
    """Field, or struct and field -> keywords, for the type that they are of. A field of that name and another type has none of them."""
    return {
        "n": {"minimum": 1, "maximum": options.max_n},
        "best_of": {"minimum": 1, "maximum": options.max_n},
        "temperature": {"minimum": 0, "maximum": 2},
        "top_k": {"minimum": -1, "maximum": _INT32},
        "top_p": {"exclusiveMinimum": 0, "maximum": 1},
        "min_p": {"minimum": 0, "maximum": 1},
        "repetition_penalty": {"minimum": 0.01, "maximum": 10},
        "presence_penalty": {"minimum": -2, "maximum": 2},
        "frequency_penalty": {"minimum": -2, "maximum": 2},
        "seed": {"minimum": -(2**63), "maximum": 2**63 - 1},
        "max_tokens": {"minimum": 0, "maximum": _INT32},
        "ChatBody.max_tokens": {"minimum": 1, "maximum": _INT32},
        "max_completion_tokens": {"minimum": 1, "maximum": _INT32},
        "max_output_tokens": {"minimum": 1, "maximum": _INT32},
        "max_tool_calls": {"minimum": 1, "maximum": _INT32},
        "min_tokens": {"minimum": 0, "maximum": _INT32},
        "truncate_prompt_tokens": {"minimum": -1, "maximum": _INT32},
        "stream_interval": {"minimum": 1, "maximum": 65536},
        "priority": {"minimum": -_INT32, "maximum": _INT32},
        "logprobs": _TOP,
        "top_logprobs": _TOP,
        "prompt_logprobs": _TOP,
        "cache_retention": {"minimum": 0, "maximum": MAX_RETENTION_SECONDS},
        "cache_salt": {"minLength": 1, "maxLength": MAX_SALT_CHARS},
        "prompt_cache_retention": {"enum": ["in_memory", "24h"]},
        "request_id": {"pattern": f"^{REQUEST_ID.pattern}$"},
        "logit_bias": {"maxProperties": MAX_BIASED_IDS, "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}},
        "stop": {**_WORDS, "maxItems": MAX_STOPS, "items": {"type": "string", **_WORDS}},
        "stop_token_ids": {"maxItems": MAX_STOP_IDS, "items": {"type": "integer", "minimum": 0}},
        "allowed_token_ids": {"minItems": 1, "maxItems": MAX_LISTED_IDS, "items": {"type": "integer", "minimum": 0}},
        "banned_token_ids": {"maxItems": MAX_LISTED_IDS, "items": {"type": "integer", "minimum": 0}},
        "bad_words": {"maxItems": MAX_BAD_WORDS, "items": {"type": "string", **_WORDS}},
        "TokenizeBody.prompt": {"maxLength": MAX_TEXT_CHARS},
        "TokenizeBody.content": {"maxLength": MAX_TEXT_CHARS},
        "DetokenizeBody.tokens": {"maxItems": MAX_TOKENS, "items": {"type": "integer", "minimum": 0}},
        "messages": {"minItems": 1, "maxItems": MAX_MESSAGES, "items": {"type": "object", "required": ["role"]}},
    }


OF_TYPE: Mapping[str, frozenset[str]] = {
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "enum"}),
    "array": frozenset({"minItems", "maxItems", "items"}),
    "object": frozenset({"maxProperties", "additionalProperties"}),
}
"""Which keywords say something of which type."""
