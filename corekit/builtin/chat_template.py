"""A model's chat template, and the rule that only the template writes control tokens, never the text it is given.

Text inside messages may look like a control token (`<|im_end|>`), or like the beginning of one that the next piece
completes. Such spans are replaced by unguessable markers before the template runs; afterwards the prompt is cut into
stretches, which the tokenizer reads as usual, and pieces that held a marker, which it reads as plain text. A prompt
without such spans is one stretch. Rendering is that of transformers (sandboxed). Knows nothing of ids.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corekit.api import InvalidRequest

RESERVED = ("chat_template", "conversations", "messages", "tools", "return_assistant_tokens_mask")
NOTHING = r"(?!)"
WORDS = ("role", "type")
"""Keys whose values templates compare: only a whole control token is replaced in them, never a mere beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is found in text before any other rule applies, with the white space it swallows."""

    text: str
    special: bool
    lstrip: bool
    rstrip: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of the prompt. `plain`: control tokens in it are mere text."""

    text: str
    plain: bool


@dataclass(frozen=True, slots=True)
class Spans:
    """Finds in text what could be read as one of some tokens: whole ones, and the beginning of one at the very end."""

    whole: re.Pattern[str]
    beginnings: frozenset[str]
    longest: int

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Spans:
        longest_first = sorted(set(tokens), key=len, reverse=True)
        beginnings = frozenset(token[:count] for token in longest_first for count in range(1, len(token)))
        return cls(re.compile("|".join(map(re.escape, longest_first)) or NOTHING), beginnings, max(map(len, beginnings), default=0))

    def replace(self, text: str, mark: Callable[[str], str], *, whole_only: bool) -> str:
        text = self.whole.sub(lambda found: mark(found[0]), text)
        if whole_only:
            return text
        end = len(text.rstrip())  # templates trim, and may join what they trimmed
        for count in range(min(self.longest, end), 0, -1):
            if text[end - count : end] in self.beginnings:
                return text[: end - count] + mark(text[end - count : end]) + text[end:]
        return text


class ChatTemplate:
    """Renders conversations. Invariant: holds no state between calls, so several threads may render at once."""

    def __init__(self, template: str, *, added: Sequence[AddedToken], names: Mapping[str, str]) -> None:
        self._template = template
        self._names = dict(names)
        # Special tokens, and others that the template itself writes (some models mark turns with them). What an
        # assistant wrote may hold the latter: that is how earlier thoughts and tool calls come back.
        control = [token for token in added if token.special or token.text in template]
        self.control_tokens = frozenset(token.text for token in control)
        self._of_all = Spans.of(self.control_tokens)
        self._of_assistant = Spans.of(token.text for token in control if token.special)
        ordered = sorted(control, key=lambda token: len(token.text), reverse=True)
        self._written = re.compile("|".join(map(_as_written, ordered)) or NOTHING)
        self._render([], None, {})  # compiles: a template with a syntax error is refused at the start, not by the first request

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, options: Mapping[str, Any]) -> list[Piece]:
        """The prompt in order. Raises InvalidRequest when the template refuses the messages."""
        if not messages:
            raise InvalidRequest("messages must hold at least one message, got none", field="messages")
        reserved = sorted(set(RESERVED) & set(options))
        if reserved:
            raise InvalidRequest(f"the options of a chat template cannot set {', '.join(reserved)}", field="template")
        options = {"add_generation_prompt": not options.get("continue_final_message"), **options}
        if options["add_generation_prompt"] and options.get("continue_final_message"):
            raise InvalidRequest("add_generation_prompt and continue_final_message exclude each other", field="template")
        guard = _Guard()
        try:
            guarded = [
                guard.over(
                    {key: value for key, value in message.items() if value is not None},
                    self._of_assistant if message.get("role") == "assistant" else self._of_all,
                )
                for message in messages
            ]
            guarded_tools = None if tools is None else guard.over(list(tools), self._of_all)
            (text,) = self._render([guarded], guarded_tools, guard.over(dict(options), self._of_all))
        except RecursionError as fault:
            raise InvalidRequest("messages or tools are nested too deeply", field="messages") from fault
        except Exception as fault:  # whatever a template does with what it was given: it is the request that it refuses
            raise InvalidRequest(
                f"the chat template refuses this conversation: {guard.restored(str(fault)) or type(fault).__name__}", field="messages"
            ) from fault
        return self._pieces(text, guard)

    def _render(self, conversations: list[Any], tools: Any, options: Mapping[str, Any]) -> list[str]:
        from transformers.utils.chat_template_utils import render_jinja_template

        rendered, _ = render_jinja_template(conversations=conversations, tools=tools, chat_template=self._template, **{**self._names, **options})
        return list(rendered)

    def _pieces(self, text: str, guard: _Guard) -> list[Piece]:
        """Cut at the control tokens that the template wrote; join again what needs no cut."""
        if not guard.replaced:
            return [Piece(text=text, plain=False)]
        pieces: list[Piece] = []
        at = 0
        for start, end in [*((found.start(), found.end()) for found in self._written.finditer(text)), (len(text), len(text))]:
            between, written = text[at:start], text[start:end]
            at = end
            if guard.holds(between):
                pieces += [Piece(text=guard.restored(between), plain=True), Piece(text=written, plain=False)]
            elif pieces and not pieces[-1].plain:
                pieces[-1] = Piece(text=pieces[-1].text + between + written, plain=False)
            else:
                pieces.append(Piece(text=between + written, plain=False))
        return [piece for piece in pieces if piece.text]


def _as_written(token: AddedToken) -> str:
    return (r"\s*" if token.lstrip else "") + re.escape(token.text) + (r"\s*" if token.rstrip else "")


class _Guard:
    """The spans taken out of one conversation, by marker. The markers cannot be guessed by whoever wrote the text."""

    def __init__(self) -> None:
        self.replaced: list[str] = []
        self._secret = secrets.token_hex(8)
        self._marker = re.compile(rf"{self._secret}x(\d+)x")

    def mark(self, span: str) -> str:
        self.replaced.append(span)
        return f"{self._secret}x{len(self.replaced) - 1}x"

    def over(self, value: Any, spans: Spans, *, whole_only: bool = False) -> Any:
        """The same value with every span in its strings replaced, in names of tools' parameters and arguments too."""
        if isinstance(value, str):
            return spans.replace(value, self.mark, whole_only=whole_only)
        if isinstance(value, Mapping):
            return {self._over_key(key, spans): self.over(item, spans, whole_only=key in WORDS) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.over(item, spans) for item in value]
        return value

    def _over_key(self, key: Any, spans: Spans) -> Any:
        """Templates look up identifiers, which must stay as they are unless they hold a whole control token."""
        return self.over(key, spans, whole_only=key.isidentifier()) if isinstance(key, str) else key

    def holds(self, text: str) -> bool:
        return self._secret in text

    def restored(self, text: str) -> str:
        return self._marker.sub(lambda found: self.replaced[int(found[1])], text)
