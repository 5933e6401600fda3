"""A model's chat template, and the rule that only the template writes control tokens, never the text it is given.

Text inside messages may look like a control token (`<|im_end|>`), or like the beginning of one that the next piece
completes. Such spans are replaced by unguessable markers before the template runs; afterwards the prompt is cut into
stretches, which the tokenizer reads as usual, and pieces that held a marker, which it reads as plain text. A prompt
without such spans is one stretch. What a template may do, `chat_program` knows. Knows nothing of ids.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from corekit.api import InvalidRequest

from .chat_program import ChatProgram, plain

REFUSED_UNREAD = ("documents", "reasoning_effort")
"""Options that a caller expects to matter; others may be given to any template, as switches for whole families of models are."""
RESERVED = ("chat_template", "conversations", "messages", "tools", "return_assistant_tokens_mask")
NOTHING = r"(?!)"
WHITE_SPACE = re.compile(r"\s*")
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

    tokens: tuple[str, ...]
    """Sorted."""
    whole: re.Pattern[str]

    @classmethod
    def of(cls, tokens: Iterable[str]) -> Spans:
        ordered = sorted({token for token in tokens if token})
        return cls(tuple(ordered), re.compile(_tree(ordered) if ordered else NOTHING))

    def replace(self, text: str, mark: Callable[[str], str], *, whole_only: bool) -> str:
        text = self.whole.sub(lambda found: mark(found[0]), text)
        if whole_only:
            return text
        end = len(text.rstrip())  # templates trim, and may join what they trimmed
        longest = max(map(len, self.tokens), default=1) - 1
        for start in range(max(0, end - longest), end):
            if self._is_beginning(text[start:end]):
                return text[:start] + mark(text[start:end]) + text[end:]
        return text

    def _is_beginning(self, text: str) -> bool:
        """Tokens that go on from text follow it at once in the order."""
        at = bisect(self.tokens, text)
        return at < len(self.tokens) and self.tokens[at].startswith(text)


def _tree(tokens: Sequence[str]) -> str:
    """A pattern for the longest of some tokens (sorted, distinct). Their common beginnings are read once, however many they are."""
    first, last = tokens[0], tokens[-1]  # being sorted, these two differ at least as early as any others
    shared = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), min(len(first), len(last)))
    beginning, rests = first[:shared], [rest for token in tokens if (rest := token[shared:])]
    if not rests:
        return re.escape(beginning)
    branches = "|".join(_tree(list(group)) for _, group in groupby(rests, key=lambda rest: rest[0]))
    return f"{re.escape(beginning)}(?:{branches}){'?' if len(rests) < len(tokens) else ''}"


class ChatTemplate:
    """Renders conversations. Invariant: holds no state between calls, so several threads may render at once."""

    def __init__(self, template: str, *, added: Sequence[AddedToken], names: Mapping[str, str]) -> None:
        self._program = ChatProgram(template)
        self._names = dict(names)
        # Special tokens, and others that the template itself writes (some models mark turns with them). What an
        # assistant wrote may hold the latter: that is how earlier thoughts and tool calls come back.
        control = [token for token in added if token.special or token.text in template]
        self.control_tokens = frozenset(token.text for token in control)
        self._of_all = Spans.of(self.control_tokens)
        self._of_assistant = Spans.of(token.text for token in control if token.special)
        self._strips_left = frozenset(token.text for token in control if token.lstrip)
        self._strips_right = frozenset(token.text for token in control if token.rstrip)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, options: Mapping[str, Any]) -> list[Piece]:
        """The prompt in order. Raises InvalidRequest when the template refuses the messages."""
        if not messages:
            raise InvalidRequest("messages must hold at least one message, got none", field="messages")
        reserved = sorted(set(RESERVED) & set(options))
        if reserved:
            raise InvalidRequest(f"the options of a chat template cannot set {', '.join(reserved)}", field="template")
        for name in REFUSED_UNREAD:
            if name in options and not self._program.reads(name):
                raise InvalidRequest(f"{name} is not read by the chat template of this model. Leave it out", field=name, code="unsupported_parameter")
        options = {"add_generation_prompt": not options.get("continue_final_message"), **options}
        if options["add_generation_prompt"] and options.get("continue_final_message"):
            raise InvalidRequest("add_generation_prompt and continue_final_message exclude each other", field="template")
        guard = _Guard()
        try:
            guarded = [
                guard.over(
                    plain({key: value for key, value in message.items() if value is not None}),
                    self._of_assistant if message.get("role") == "assistant" else self._of_all,
                )
                for message in messages
            ]
            guarded_tools = None if tools is None else guard.over([_tool(tool) for tool in tools], self._of_all)
            text = self._program.render(guarded, guarded_tools, {**self._names, **guard.over(plain(options), self._of_all)})
        except RecursionError as fault:
            raise InvalidRequest("messages or tools are nested too deeply", field="messages") from fault
        except Exception as fault:  # whatever a template does with what it was given: it is the request that it refuses
            raise InvalidRequest(
                f"the chat template refuses this conversation: {guard.restored(str(fault)) or type(fault).__name__}", field="messages"
            ) from fault
        return self._pieces(text, guard)

    def _pieces(self, text: str, guard: _Guard) -> list[Piece]:
        """Cut at the control tokens that the template wrote; join again what needs no cut."""
        if not guard.replaced:
            return [Piece(text=text, plain=False)]
        pieces: list[Piece] = []
        usual = at = 0  # where the stretch that is read as usual begins; where the last control token ended
        for start, end in (*self._written(text), (len(text), len(text))):
            if guard.holds(text[at:start]):
                pieces += [Piece(text=text[usual:at], plain=False), Piece(text=guard.restored(text[at:start]), plain=True)]
                usual = start
            at = end
        return [piece for piece in (*pieces, Piece(text=text[usual:], plain=False)) if piece.text]

    def _written(self, text: str) -> Iterator[tuple[int, int]]:
        """Where the tokenizer finds control tokens, with the white space that they swallow and no earlier one has."""
        at = 0
        while found := self._of_all.whole.search(text, at):
            start, end = found.span()
            if found[0] in self._strips_left:
                start = at + len(text[at:start].rstrip())
            if found[0] in self._strips_right and (after := WHITE_SPACE.match(text, end)):
                end = after.end()
            yield start, end
            at = end


def _tool(tool: Any) -> Any:
    if not isinstance(tool, Mapping):
        raise ValueError("a tool is described by a mapping, as JSON schema has it")
    return plain(tool)


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
