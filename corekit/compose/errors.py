"""Errors of composition: what is wrong with a configuration or with the choice of parts. Knows nothing of how it is shown."""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence

from corekit.api import CorekitError


class ConfigError(CorekitError):
    """The configuration cannot be used as it stands. `problems` has every fault that was found, one text each."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ModelError(CorekitError):
    """The files of a model, its tokenizer's among them, cannot be used."""


class BindError(CorekitError):
    """A frontend cannot have its address."""


def near(name: str, known: Iterable[str]) -> str:
    """ " Did you mean x?" for a misspelt name, or nothing."""
    match = nearest(name, known)
    return f" Did you mean {match!r}?" if match else ""


def nearest(name: str, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def ended(text: str) -> str:
    """With a full stop, unless it ends as a sentence does."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def place_of(error: BaseException, caller: str) -> str:
    """ " at FILE:LINE", where it was raised; "" when that is the file `caller` itself, or the import that it asked for."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != caller and "importlib" not in frame.filename]
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
