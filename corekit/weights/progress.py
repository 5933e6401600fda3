"""A progress bar on stderr for what takes long. Knows nothing of what is counted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

DELAY_SECONDS = 2.0


@contextmanager
def progress_bar(label: str, num_bytes: int, *, shown: bool) -> Iterator[Any]:
    """A tqdm bar in bytes that appears only when the work takes longer than DELAY_SECONDS; `update(count)` moves it."""
    from tqdm import tqdm

    hidden = not shown or sys.stderr is None
    with tqdm(total=num_bytes, desc=label, unit="B", unit_scale=True, delay=DELAY_SECONDS, file=sys.stderr, disable=hidden, leave=False) as bar:
        yield bar
