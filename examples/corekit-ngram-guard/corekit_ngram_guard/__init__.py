"""The hooks: two parts, their options and how they are built. Plugins are listed by importing this: keep it light."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corekit.api import BuildContext, LogitsProcessor, Observer, Provider, hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """The keys of [logits_processor.options]."""

    n: int = 4
    """Length in ids of what must not come twice in one answer, 2..64."""

    def __post_init__(self) -> None:
        if not 2 <= self.n <= 64:
            raise ValueError(f"n must be an integer from 2 to 64, got {self.n}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The keys of [observer.options]."""

    path: str
    """The file; lines are added to what is there."""
    max_waiting: int = 1000
    """Lines that may wait for the disk, 1..1000000; those beyond are dropped and counted."""

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path must not be empty: it is the file that the lines go to")
        if not 1 <= self.max_waiting <= 1_000_000:
            raise ValueError(f"max_waiting must be an integer from 1 to 1000000, got {self.max_waiting}")


def build_guard(context: BuildContext, options: GuardOptions) -> LogitsProcessor:
    from .guard import NgramGuard

    return NgramGuard(options.n)


def build_log(context: BuildContext, options: LogOptions) -> Observer:
    from .request_log import RequestLog

    return RequestLog(Path(options.path), options.max_waiting)


GUARD: Provider[LogitsProcessor] = Provider(
    name="ngram-guard",
    api=1,
    summary="no n ids in a row come twice in one answer",
    build=build_guard,
    options=GuardOptions,
)
LOG: Provider[Observer] = Provider(
    name="request-log",
    api=1,
    summary="one JSON line a finished request, in a file",
    build=build_log,
    options=LogOptions,
)


@hookimpl
def corekit_register_logits_processors() -> Sequence[Provider[LogitsProcessor]]:
    return [GUARD]


@hookimpl
def corekit_register_observers() -> Sequence[Provider[Observer]]:
    return [LOG]
