"""Chat templates write what they write in transformers, which defines their dialect; and they reach nothing outside the sandbox."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from corekit.builtin.chat_program import ChatProgram, plain

TURNS = "{% for message in messages %}<{{ message.role }}>{{ message.content }}</>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TRIMMED = "{% for m in messages %}\n  {%- if m.role == 'user' %}U:{{ m['content'] | trim }}\n{% else %}A:{{ m['content'] | trim }}\n{% endif %}\n{% endfor %}"
PARTS = "{% for m in messages %}{% for part in m.content %}[{{ part.text }}]{% endfor %}{% endfor %}"
THOUGHTS = "{% for m in messages %}{{ m.content }}|{{ m.reasoning_content }}|{{ m.thinking }}|{{ m.reasoning }};{% endfor %}"
TALK = [{"role": "user", "content": " What is <b>? "}, {"role": "assistant", "content": "  It is 'so' & \"thus\"  "}]
SCHEMA = {"type": "function", "function": {"name": "f", "parameters": {"é<>&'": [1, 2.5, None, True]}}}

CASES: dict[str, tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]] = {
    "turns": (TURNS, TALK, None, {"add_generation_prompt": True}),
    "white space of blocks": (TRIMMED, TALK, None, {}),
    "no tools": ("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }}", TALK, None, {"add_generation_prompt": False}),
    "tools": ("{{ tools | tojson }}{{ tools[0] | tojson(indent=2) }}{{ tools | tojson(sort_keys=true, separators=(',', ':')) }}", TALK, [SCHEMA], {}),
    "escapes": ("{{ 'é<' | tojson(ensure_ascii=true) }}{{ messages[0].content }}", TALK, None, {}),
    "documents": ("{{ documents[0].title }}", TALK, None, {"documents": [{"title": "T", "text": "x"}]}),
    "variables": ("{{ bos_token }}{{ deep.of[1] }}{{ missing }}", TALK, None, {"bos_token": "<s>", "deep": {"of": [1, 2]}}),
    "loop controls": ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}", TALK, None, {}),
    "generation": ("{% for m in messages %}{% generation %}{% set x = m.role %}{{ x }}{% endgeneration %}{{ x }}{% endfor %}", TALK, None, {}),
    "namespace": ("{% set ns = namespace(self=1, n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ ns.self }}", TALK, None, {}),
    "dict": ("{{ dict(a=1)['a'] }}{{ dict.fromkeys('ab', 2) }}{{ dict([('c', 3)]).items() | list }}", TALK, None, {}),
    "macros": ("{% macro say(x) %}({{ x }}){% endmacro %}{% for m in messages %}{{ say(m.role) }}{% endfor %}", TALK, None, {}),
    "thoughts": (THOUGHTS, [{"content": "a", "reasoning": "b"}, {"content": "c", "thinking": "d", "reasoning_content": "e"}, {"content": "f"}], None, {}),
    "goes on": (TURNS, TALK, None, {"continue_final_message": True}),
    "goes on, trimmed": (TRIMMED, TALK, None, {"continue_final_message": True}),
    "goes on in its last part": (PARTS, [{"content": [{"text": "a"}, {"text": "b "}, {"image": "c"}]}], None, {"continue_final_message": True}),
    "goes on with thoughts": (
        "{{ messages[0].content }}|{{ messages[0].reasoning_content }}",
        [{"content": "a", "thinking": "b "}],
        None,
        {"continue_final_message": "thinking"},
    ),
    "goes on in another field": (
        "{{ messages[0].name }}!{{ messages[0].content }}",
        [{"content": "a", "name": "n "}],
        None,
        {"continue_final_message": "name"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_that_of_transformers(name: str) -> None:
    template, messages, tools, variables = CASES[name]
    (wanted,), _ = render_jinja_template(conversations=[messages], tools=tools, chat_template=template, **variables)
    assert ChatProgram(template).render(messages, tools, variables) == wanted
    assert wanted, "a case that writes nothing shows nothing"


REFUSED: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "by its own words": ("{{ raise_exception('no system turn') }}", TALK, {}),
    "a class": ("{{ messages.__class__.__mro__ }}", TALK, {}),
    "a function's globals": ("{{ raise_exception.__globals__['x'] }}", TALK, {}),
    "a format": ("{{ '{0.__class__.__name__.x}'.format(messages) }}", TALK, {}),
    "a change of what it is given": ("{{ messages.append(1) }}", TALK, {}),
    "a namespace with a door": ("{% set ns = namespace(__class__=1) %}", TALK, {}),
    "a door set in a namespace": ("{% set ns = namespace() %}{% set ns.__class__ = 1 %}", TALK, {}),
    "documents of another kind": (TURNS, TALK, {"documents": ["text"]}),
    "nothing that could go on": (TURNS, [{"role": "user", "content": "a"}, {"role": "assistant"}], {"continue_final_message": True}),
    "a field that it does not read": (TURNS, [{"role": "user", "name": "a", "content": "b"}], {"continue_final_message": "name"}),
    "a text that it changes": ("{{ messages[0].content | upper }}", [{"content": "abc"}], {"continue_final_message": True}),
    "parts without a text": (PARTS, [{"content": [{"image": "x"}]}], {"continue_final_message": True}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_transformers_refuses_is_refused(name: str) -> None:
    template, messages, variables = REFUSED[name]
    with pytest.raises(Exception):  # noqa: B017 - which one is transformers' own affair
        render_jinja_template(conversations=[messages], chat_template=template, **variables)
    with pytest.raises(Exception) as caught:
        ChatProgram(template).render(messages, None, variables)
    assert str(caught.value)


def test_its_own_words_come_through() -> None:
    with pytest.raises(Exception, match=r"^no system turn$"):
        ChatProgram("{{ raise_exception('no system turn') }}").render(TALK, None, {})


def test_today() -> None:
    text = ChatProgram("{{ strftime_now('%Y') }}").render(TALK, None, {})
    assert 2024 < int(text) < 3000


class Role(enum.StrEnum):
    USER = "user"


@dataclass
class Part:
    text: str
    size: Any


class Dumped:
    def model_dump(self) -> dict[str, Any]:
        return {"a": (1, Role.USER)}


def test_what_a_template_sees_is_plain() -> None:
    seen = plain({"r": Role.USER, "n": np.int64(3), "f": np.float32(0.5), "yes": np.bool_(True), "p": Part("a", np.zeros(2)), "d": Dumped(), "o": object()})
    assert seen == {"r": "user", "n": 3, "f": 0.5, "yes": True, "p": {"text": "a", "size": "<ndarray>"}, "d": {"a": [1, "user"]}, "o": "<object>"}
    assert [type(seen[name]) for name in "rnf"] == [str, int, float]
    assert seen["yes"] is True
