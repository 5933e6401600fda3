"""Slot `tool_format` (provisional, any number): how one family of models writes tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDelta:
    """A piece of an answer: plain text, or part of the tool call numbered `index`."""

    text: str = ""
    index: int | None = None
    name: str | None = None
    arguments: str = ""


class ToolParser(Protocol):
    """One answer. Joined deltas are the same however the text was cut."""

    def push(self, text: str) -> tuple[ToolDelta, ...]: ...

    def finish(self) -> tuple[ToolDelta, ...]: ...


class ToolFormat(Protocol):
    """Reads one family's tool calls; one parser per answer."""

    def start(self) -> ToolParser: ...
