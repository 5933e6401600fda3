"""A list that others may look at. Knows requests as things only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from .request import Request


class Live(Sequence[Request]):
    """A list as a policy may see it: always up to date, and not its own to change."""

    __slots__ = ("_of",)

    def __init__(self, of: list[Request]) -> None:
        self._of = of

    @overload
    def __getitem__(self, at: int) -> Request: ...

    @overload
    def __getitem__(self, at: slice) -> list[Request]: ...

    def __getitem__(self, at: int | slice) -> Request | list[Request]:
        return self._of[at]

    def __len__(self) -> int:
        return len(self._of)

    def __iter__(self) -> Iterator[Request]:
        return iter(tuple(self._of))  # it may preempt while it looks
