"""From errors to one message on stderr and an exit code. Knows what a user needs to see; tracebacks only when asked for."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NoReturn

import click

from corekit.api import CorekitError, RequestFailed
from corekit.bench.errors import BenchUsage
from corekit.compose.errors import BindError, ConfigError, ModelError
from corekit.weights.errors import SourceError

from .log import tell

FAILED, USAGE, CONFIG, LOAD, ADDRESS = 1, 2, 3, 4, 5


def fail(message: str, code: int, error: Exception | None = None) -> NoReturn:
    """End the command with a message on stderr. error: whose traceback to show."""
    tell(f"corekit: {message}", level=logging.ERROR, error=error)
    raise click.exceptions.Exit(code)


def say(text: str = "", *, nl: bool = True) -> None:
    """Print on standard output. A pipe that its reader closed is raised as it is; whatever else keeps it from being written ends the command."""
    try:
        click.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        fail(f"standard output cannot be written: {error.strerror or error}. Make room where it goes, or send it elsewhere.", FAILED)


def standard_input() -> BinaryIO:
    """Its bytes. Raises OSError where the command was started without one."""
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise OSError("it is closed")
    return stream


@contextmanager
def failing(code: int, *, debug: bool) -> Iterator[None]:
    """Whatever is raised inside ends the command: by its own code if it has one, else by `code`."""
    try:
        yield
    except (click.exceptions.Exit, click.ClickException, BrokenPipeError):
        raise
    except Exception as error:
        fail(_message(error), _code(error, code), error if debug else None)


def _code(error: Exception, code: int) -> int:
    for kind, own in ((ConfigError, CONFIG), (SourceError, LOAD), (ModelError, LOAD), (BindError, ADDRESS), (BenchUsage, USAGE)):
        if isinstance(error, kind):
            return own
    return code


def _message(error: Exception) -> str:
    if isinstance(error, ConfigError):
        if len(error.problems) == 1:
            return error.problems[0]
        return f"{len(error.problems)} problems in the configuration:\n" + "\n".join(f"  {problem}" for problem in error.problems)
    notes = "".join(f"\n  {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, RequestFailed):
        return f"{error}{notes}\n  --log-level debug shows where."
    if isinstance(error, CorekitError | OSError):
        return f"{error}{notes}"
    return f"{type(error).__name__}: {error}{notes}\n  --debug shows where."
