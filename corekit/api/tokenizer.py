"""Slot `tokenizer` (stable, one): text to ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .errors import InvalidRequest
from .types import invalid

TEMPLATE_OPTIONS = frozenset(
    {
        "add_generation_prompt",
        "continue_final_message",
        "date_string",
        "documents",
        "enable_thinking",
        "preserve_thinking",
        "reasoning_effort",
        "thinking",
        "thinking_budget",
    }
)
"""What a caller may set in a chat template. Anything else could name an argument of the rendering itself."""


class TokenDecoder(Protocol):
    """Turns one sample's ids into text as they come.

    Joined pushes plus `finish` equal one decode of all ids. No push returns part of a UTF-8 character; bytes that never
    become a character are held for at most four bytes and then shown as U+FFFD. The cost of a push does not grow.
    """

    def push(self, token_id: int) -> str:
        """The text that this id completes; often empty, never taken back."""
        ...

    def finish(self) -> str:
        """What was held back. Called once, after the last push."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """A rendered conversation: the text that the template wrote and the ids to feed the model."""

    text: str
    token_ids: tuple[int, ...]


class Tokenizer(Protocol):
    """Text to ids, chat template, incremental decoding. `encode` and `apply_chat_template` are called from several threads."""

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a meaning; the model's own table may be padded beyond it."""
        ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end an answer, all of them."""
        ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        """Ids of text. `add_special` adds what the tokenizer's own rule adds around a raw prompt (BOS, for many)."""
        ...

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None = None, **options: Any) -> ChatPrompt:
        """Render a conversation. Text inside messages that looks like a control token is encoded as plain text.

        Raises InvalidRequest when the template refuses the messages or there is no template.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes this id stands for in text; may be part of a character. Joined, they give the text. Beyond `vocab_size`: none."""
        ...

    def start_decoding(self, prompt_tail: Sequence[int] = (), *, skip_special_tokens: bool = True) -> TokenDecoder:
        """A decoder for what follows `prompt_tail`, the last ids of the prompt (they decide about a leading space)."""
        ...


def template_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a caller may set of a chat template, checked. Raises InvalidRequest of the field `template`."""
    options = dict(given)
    for name, value in options.items():
        if name not in TEMPLATE_OPTIONS:
            raise InvalidRequest(f"template option {str(name)[:60]!r} is not allowed. Allowed: {', '.join(sorted(TEMPLATE_OPTIONS))}", field="template")
        if name == "documents":
            _check_documents(value)
        elif not isinstance(value, str | int | float | None):
            raise invalid(f"template option {name}", value, "a string, a number or true or false")
    options.setdefault("add_generation_prompt", not options.get("continue_final_message", False))
    return options


def _check_documents(given: object) -> None:
    if not isinstance(given, list | tuple) or not all(isinstance(each, Mapping) and all(isinstance(text, str) for text in each.values()) for each in given):
        raise invalid("template option documents", given, "a list of objects of strings, such as title and text")
