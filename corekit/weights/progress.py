"""How far it is, for what takes long: a bar on a terminal, elsewhere a line now and then. Knows nothing of what is counted."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DELAY_SECONDS = 2.0
log = logging.getLogger(__name__)


def on_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@contextmanager
def progress_bar(label: str, num_bytes: int, *, shown: bool) -> Iterator[Any]:
    """A tqdm bar in bytes that appears only when the work takes longer than DELAY_SECONDS; `update(count)` moves it."""
    from tqdm import tqdm

    from .spoken import SpokenBar

    hidden = not shown or sys.stderr is None
    kind, more = (tqdm, {"file": sys.stderr, "leave": False}) if on_terminal() or hidden else (SpokenBar, {})
    with kind(total=num_bytes, desc=label, unit="B", unit_scale=True, delay=DELAY_SECONDS, disable=hidden, **more) as bar:
        yield bar


def say(text: str) -> None:
    """One line: above the bars of a terminal, else in the log. Who has no log finds it on stderr all the same."""
    if not on_terminal() and log.hasHandlers():
        log.info("%s", text)
    elif sys.stderr is not None:
        from tqdm import tqdm

        tqdm.write(f"corekit: {text}", file=sys.stderr)
