"""Events in the form that Perfetto and chrome://tracing show: Google's Trace Event Format, as one JSON object. Knows no engine.

Times are seconds of one clock; in the file they are microseconds from the earliest event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ChromeTrace:
    """Groups (processes of the format) of tracks (threads of it), spans on tracks, and counters of groups.

    Invariant that callers keep: two spans of one track are apart, or one is within the other.
    """

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._groups: dict[str, int] = {}
        self._num_tracks = 0

    def group(self, name: str) -> int:
        """In the order of their first mention, from top to bottom."""
        if name not in self._groups:
            at = self._groups[name] = len(self._groups) + 1
            self._name("process", {"pid": at}, name, at)
        return self._groups[name]

    def track(self, group: str, name: str) -> Track:
        self._num_tracks += 1
        place = {"pid": self.group(group), "tid": self._num_tracks}
        self._name("thread", place, name, self._num_tracks)
        return Track(self._events, place)

    def counter(self, group: str, name: str, time: float, values: Mapping[str, float]) -> None:
        """Values of one moment, stacked; they hold until the next."""
        self._events.append({"ph": "C", "name": name, "pid": self.group(group), "ts": time, "args": dict(values)})

    def encoded(self, about: Mapping[str, Any]) -> bytes:
        """The file. about: facts that belong to all of it."""
        origin = min((event["ts"] for event in self._events if "ts" in event), default=0.0)
        events = [self._shifted(event, origin) for event in self._events]
        return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}) + b"\n"

    def _name(self, what: str, place: Mapping[str, int], name: str, at: int) -> None:
        self._events.append({"ph": "M", "name": f"{what}_name", **place, "args": {"name": name}})
        self._events.append({"ph": "M", "name": f"{what}_sort_index", **place, "args": {"sort_index": at}})

    @staticmethod
    def _shifted(event: dict[str, Any], origin: float) -> dict[str, Any]:
        if "ts" not in event:
            return event
        began = _microseconds(event["ts"] - origin)
        times = {"ts": began}
        if "dur" in event:  # from rounded ends, so that what touches does not overlap
            times["dur"] = round(_microseconds(event["ts"] + event["dur"] - origin) - began, 3)
        return event | times


class Track:
    """One line of spans."""

    def __init__(self, events: list[dict[str, Any]], place: Mapping[str, int]) -> None:
        self._events = events
        self._place = place

    def span(self, name: str, began: float, ended: float, args: Mapping[str, Any] | None = None) -> None:
        self._events.append({"ph": "X", "name": name, **self._place, "ts": began, "dur": max(0.0, ended - began), "args": dict(args or {})})


def _microseconds(seconds: float) -> float:
    return round(1e6 * seconds, 3)
