"""A chat template as a program: the dialect of Jinja in which they are written, in a sandbox.

A template comes with a model, so it is a stranger's program: it sees plain JSON values, changes none of them, and reaches
no name that begins with an underscore. It may use, and gives, what it would in transformers' `apply_chat_template`, which
takes longer to import than this engine to start. Knows nothing of tokens.
Dialect: https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.nodes import Filter, For, Node, Scope, Template
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names under which a message's thoughts come; templates read the first, and some the second."""

MAX_SECONDS = 2.0
"""Of a processor, for one rendering: templates take thousandths, and one that loops for ever would hold its thread for ever."""
_END = "end of time"
"""Where a rendering has the moment at which it must be done: no template can spell the name."""


class ChatProgram:
    """Invariant: holds no state between calls, so several threads may render at once."""

    def __init__(self, text: str) -> None:
        """Raises jinja2's errors for a text that is no template."""
        self._text = text
        self._template = _sandbox().from_string(text)

    def reads(self, variable: str) -> bool:
        return variable in find_undeclared_variables(_sandbox().parse(self._text))

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, variables: Mapping[str, Any]) -> str:
        """The text of one conversation; all of it made `plain` before. Whatever the program raises passes.

        Of the variables `continue_final_message` is not the program's: the text ends where the last message does. True, or the
        field of that message that is to go on.
        """
        for document in variables.get("documents") or ():
            if not isinstance(document, Mapping):
                raise TypeError("documents must be a list of mappings with a title and a text")
        seen = [_with_reasoning(message) for message in messages]
        given = {"documents": None, **variables, _END: time.thread_time() + MAX_SECONDS}
        goes_on = given.pop("continue_final_message", False)
        if not goes_on:
            return self._template.render(messages=seen, tools=tools, **given)
        field, mark = goes_on if isinstance(goes_on, str) else "content", f"{secrets.token_hex(8)} "
        text, seen[-1:] = self._marked(seen, field, mark)
        return _cut(self._template.render(messages=seen, tools=tools, **given), text, mark)

    def _marked(self, messages: Sequence[dict[str, Any]], field: str, mark: str) -> tuple[str, list[dict[str, Any]]]:
        """The text that goes on, and the last message with a mark behind it."""
        last = dict(messages[-1])
        if (value := last.get(field)) is None:
            raise ValueError(f"continue_final_message: the last message has no {field!r} that could go on")
        same = [name for name in REASONING if last.get(name) == value] if field in REASONING else [field]
        if not any(name in self._text for name in same):
            raise ValueError(f"continue_final_message: the template does not read {field!r}")
        if not isinstance(value, list):
            return value, [last | dict.fromkeys(same, value + mark)]
        at = next((at for at in reversed(range(len(value))) if "text" in value[at]), None)
        if at is None:
            raise ValueError("continue_final_message: the last message has no text that could go on")
        text = value[at]["text"]
        return text, [last | {field: [*value[:at], value[at] | {"text": text + mark}, *value[at + 1 :]]}]


def plain(value: Any) -> Any:
    """The same in JSON's types: objects have methods, and some of those would let a template out of its sandbox.

    Fields of dataclasses and pydantic models become keys; what has no value as JSON becomes the name of its type.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, str):  # of a subclass only the value stays
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump())
    if getattr(value, "shape", None) == () and callable(item := getattr(value, "item", None)):  # a number of numpy
        return plain(item())
    return f"<{type(value).__name__}>"


def _with_reasoning(message: Mapping[str, Any]) -> dict[str, Any]:
    """Thoughts, by whichever name they came, under both names that templates read."""
    thoughts = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return dict(message) if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _cut(rendered: str, text: str, mark: str) -> str:
    """What stands before the mark. A template that trims what it is given took the mark's own space, and what was before it goes too."""
    at = rendered.rfind(mark.strip())
    if at < 0 or text.strip() not in rendered:
        raise ValueError("continue_final_message: the template does not write the last message as it is, so nothing can go on there")
    return rendered[:at] if rendered.startswith(mark, at) else rendered[:at].rstrip()


class _Sandbox(ImmutableSandboxedEnvironment):
    """Looks at the time whenever a loop goes on and something is called: a program that does neither comes to its end."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> Template:
        parsed = super()._parse(source, name, filename)
        for loop in list(parsed.find_all(For)):
            loop.iter = Filter(loop.iter, _END, [], [], None, None, lineno=loop.lineno)
        return parsed

    def call(self, context: Context, called: Any, /, *values: Any, **more: Any) -> Any:
        _check_time(context)
        return super().call(context, called, *values, **more)


@pass_context
def _timed(context: Context, values: Iterable[Any]) -> _Timed:
    return _Timed(context, values)


class _Timed:
    """What a loop goes through, as long as the time lasts."""

    def __init__(self, context: Context, values: Iterable[Any]) -> None:
        self._context = context
        self._values = values

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            _check_time(self._context)
            yield value

    def __len__(self) -> int:
        if not isinstance(self._values, Sized):
            raise TypeError(f"a {type(self._values).__name__} has no length")
        return len(self._values)


def _check_time(context: Context) -> None:
    if time.thread_time() > context.get(_END, float("inf")):
        raise TemplateError(f"it takes longer than {MAX_SECONDS:g} s")


def _sandbox() -> ImmutableSandboxedEnvironment:
    sandbox = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    sandbox.filters.update({"tojson": _to_json, _END: _timed})
    sandbox.globals.update(raise_exception=_raise, strftime_now=_now, dict=_Dict(), namespace=_Namespace)
    return sandbox


class _Generation(Extension):
    """`{% generation %}` says which text a model is trained to write: here it is text like any other."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


class _Dict:
    """Python's dict without its other doors."""

    def __call__(self, *values: Any, **more: Any) -> dict[str, Any]:
        return dict(*values, **more)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


class _Namespace(Namespace):
    """Jinja's, without names that begin with an underscore."""

    def __init__(self, /, *values: Any, **more: Any) -> None:
        held = dict(*values, **more)
        for name in held:
            _check_name(name)
        Namespace.__init__(self, held)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace in a chat template cannot hold {name!r}: names that begin with an underscore are Python's own")


def _raise(message: str) -> None:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Unlike Jinja's own this leaves <, > and & as they are: a prompt is no web page."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
