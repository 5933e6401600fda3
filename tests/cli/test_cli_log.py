"""Log lines: on a terminal and without one, for people and for machines."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator

import click
import pytest
import structlog
from tqdm import tqdm

from corekit.cli import main
from corekit.cli.log import FORMAT, adopt, draws_bars, set_up, tell


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    root.setLevel(level)


def in_context(log_format: str = "auto", color: bool | None = None) -> click.Context:
    context = click.Context(click.Command("serve"), color=color)
    context.meta[FORMAT] = log_format
    return context


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


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
@pytest.mark.parametrize(("asked", "is_json"), [("json", True), ("console", False)])
def test_a_format_that_is_asked_for_rules(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch, asked: str, is_json: bool) -> None:
    for for_machines in (True, False):
        with in_context(asked):
            assert fault(kind(), monkeypatch, for_machines=for_machines).startswith("{") is is_json


def test_every_line_is_one_object_whoever_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rooms' loggers, those of structlog, Python's warnings, libraries with a handler of their own, and the verb itself."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    library = logging.getLogger("some_library")
    library.addHandler(logging.StreamHandler(stream))
    library.propagate = False
    with in_context("json"):
        set_up("info")
        adopt()
        logging.getLogger("corekit.openai_http").warning("request %s\nfailed", "r-1", extra={"request_id": "r-1", "odd": object})
        structlog.get_logger("corekit.other").info("bound", request_id="r-2")
        library.warning("from a library")
        warnings.warn("take care", stacklevel=1)
        tell("stopping")
        logging.getLogger("corekit").debug("too fine")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["logger"], line["level"], line.get("request_id")) for line in lines] == [
        ("corekit.openai_http", "warning", "r-1"),
        ("corekit.other", "info", "r-2"),
        ("some_library", "warning", None),
        ("py.warnings", "warning", None),
        ("corekit", "info", None),
    ]
    assert [line["event"] for line in lines[:3]] == ["request r-1\nfailed", "bound", "from a library"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z", line["time"]) for line in lines)


def test_the_console_does_not_say_twice_what_the_message_says(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    set_up("info")
    logging.getLogger("corekit.openai_http").info("200 r-1", extra={"request_id": "r-1"})
    tell("stopping")
    line, said = stream.getvalue().splitlines()
    assert line.count("r-1") == 1
    assert said == "stopping"


@pytest.mark.parametrize(("environ", "colors"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)])
def test_colors_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], colors: bool) -> None:
    for name, value in {"NO_COLOR": "", "TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, value)
    with main.make_context("corekit", ["check"]) as context:
        context.command.callback()  # type: ignore[misc]
        text = fault(Terminal(), monkeypatch, for_machines=False)
    assert ("\x1b[" in text) is colors
    assert "it broke" in text


@pytest.mark.parametrize(("kind", "asked", "drawn"), [(Terminal, "json", False), (Terminal, "auto", True), (io.StringIO, "json", True)])
def test_no_bar_between_lines_for_machines(monkeypatch: pytest.MonkeyPatch, kind: type[io.StringIO], asked: str, drawn: bool) -> None:
    """Off a terminal what would be a bar is lines of the log."""
    monkeypatch.setattr(sys, "stderr", kind())
    with in_context(asked):
        set_up("info", for_machines=True)
    assert draws_bars() is drawn


def test_a_bar_steps_aside_for_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    for asked in ("console", "json"):
        with in_context(asked, color=False):
            set_up("info")
        with tqdm(total=10, desc="loading", file=screen, mininterval=0, ncols=60) as bar:
            bar.update(3)
            logging.getLogger("corekit").info("a line")
        before, line, after = re.split(r"([^\r\n]*a line[^\n]*\n)", screen.getvalue())[-3:]
        assert re.search(r"\r *\r$", before), "the bar is wiped out first"
        assert (line.startswith("{") and json.loads(line)["event"] == "a line") or asked == "console"
        assert "loading:  30%" in after, "and drawn again"
