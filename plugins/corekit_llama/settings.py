"""Numbers and flags of a configuration, checked as they are read. Knows no names of settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corekit.api import CorekitError

LARGEST = 1 << 30


class Unsupported(CorekitError, ValueError):
    """Why this decoder cannot run a model; said before its weights are loaded."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A table; null counts as absent, as writers of such tables mean it."""

    raw: Mapping[str, Any]
    where: str

    def count(self, name: str, default: int | None = None, *, most: int = LARGEST) -> int:
        """A whole number from 1 to `most`."""
        value = self._given(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise Unsupported(f"{self.where}: {name} is {value!r:.60}; a whole number from 1 to {most} is needed")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._given(name, default)
        if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:  # nor NaN
            raise Unsupported(f"{self.where}: {name} is {value!r:.60}; a number of at least 0 is needed")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._given(name, default)
        if type(value) is not bool:
            raise Unsupported(f"{self.where}: {name} is {value!r:.60}; true or false is needed")
        return value

    def _given(self, name: str, default: Any) -> Any:
        value = self.raw.get(name)
        if value is None and default is None:
            raise Unsupported(f"{self.where}: {name} is missing")
        return default if value is None else value
