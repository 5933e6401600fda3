"""Log lines: on a terminal and without one, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from corekit.cli.log import set_up


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def fault(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *, for_machines: bool) -> str:
    monkeypatch.setattr(sys, "stderr", stream)
    set_up("info", for_machines=for_machines)

    def answer(prompt: str) -> None:
        raise ValueError(f"a prompt of {len(prompt)} characters")

    try:
        answer("a private" + " prompt")
    except ValueError:
        logging.getLogger("corekit.somewhere").exception("it broke")
    return stream.getvalue()


@pytest.mark.parametrize("for_machines", [True, False])
@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_a_traceback_has_no_values_of_variables(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, for_machines: bool) -> None:
    text = fault(kind(), monkeypatch, for_machines=for_machines)
    assert "a private prompt" not in text
    assert "Traceback" in text
    assert "a prompt of 16 characters" in text


def test_json_is_for_machines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(fault(io.StringIO(), monkeypatch, for_machines=True))["event"] == "it broke"
    text = fault(io.StringIO(), monkeypatch, for_machines=False)
    assert "\x1b" not in text
    assert not text.startswith("{")
    assert "it broke" in text
    assert not fault(Terminal(), monkeypatch, for_machines=True).startswith("{")
