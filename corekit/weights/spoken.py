"""A progress bar for where nobody sees one: says how far it is in a line of the log, seldom. Knows nothing of what is counted."""

from __future__ import annotations

import io
from typing import Any

from tqdm import tqdm

EVERY_SECONDS = 10.0
"""Between two lines."""
FORM = "{desc}: {percentage:.0f} %, {n_fmt} of {total_fmt}, {elapsed}"


class SpokenBar(tqdm):  # type: ignore[misc]
    """A bar as its libraries use one. Invariant: a line at most every EVERY_SECONDS, none before `delay` and none when nothing moved."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self._spoke: float | None = None
        options = {**options, "file": io.StringIO(), "leave": False, "bar_format": FORM, "mininterval": 1.0, "ascii": True}
        super().__init__(*given, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Called by tqdm when there may be something to show."""
        from .progress import say

        if msg is not None or not self.total or self.n <= self.initial:
            return
        now = self._time()
        last = self.start_t + self.delay - EVERY_SECONDS if self._spoke is None else self._spoke
        if now - last >= EVERY_SECONDS:
            self._spoke = now
            say(str(self))

    def clear(self, nolock: bool = False) -> None:
        """There is nothing to wipe out."""
