"""What a verb says on stderr: log lines of the whole process, and a few words of its own. For people, or one JSON object a line."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import structlog

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "console", "json")
FORMAT = "corekit.log_format"
"""Where the context of a command keeps the format that was asked for."""


def set_up(level: str, *, for_machines: bool = False) -> None:
    """Route the standard library's logging, which every room uses, through structlog.

    Whoever asked for no format gets the console's; for_machines: JSON where there is no terminal. Where JSON was asked for,
    nothing else is written, the verb's own words included.
    """
    structlog = _structlog()
    context = click.get_current_context(silent=True)
    asked = "auto" if context is None else context.meta.get(FORMAT, "auto")
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    as_json = asked == "json" or (asked == "auto" and for_machines and not on_terminal)
    colors = on_terminal and (context is None or context.color is not False)
    before = _before(as_json)
    handler = _Lines(sys.stderr, alone=asked == "json") if sys.stderr is not None else logging.NullHandler()  # a daemon may have none
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=_after(as_json, colors)))
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    if asked == "json":
        logging.captureWarnings(True)


def _structlog() -> ModuleType:
    """structlog without rich, which it takes where that is installed, to print tracebacks with values of variables: most of its import."""
    kept_out = "rich" not in sys.modules
    if kept_out:
        sys.modules["rich"] = None  # type: ignore[assignment]  # how Python is told that a module cannot be imported
    try:
        import structlog
    finally:
        if kept_out:
            del sys.modules["rich"]
    return structlog


def adopt() -> None:
    """Libraries that write their log lines to the terminal themselves, as some do once they are imported, use ours instead."""
    for logger in list(logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):
            for own in [handler for handler in logger.handlers if type(handler) is logging.StreamHandler]:
                logger.removeHandler(own)
                logger.propagate = True


def draws_bars() -> bool:
    """Whether a bar on stderr would stand between no lines that are for machines."""
    return not (_alone() and sys.stderr.isatty())


def tell(message: str, *, level: int = logging.INFO, error: Exception | None = None) -> None:
    """A line of the verb itself on stderr, below the traceback of error; one more log line where nothing else may be there."""
    if _alone():
        logging.getLogger("corekit").log(level, message, exc_info=error)
        return
    if error is not None:
        traceback.print_exception(error)
    click.echo(message, err=True)


def _alone() -> bool:
    return any(isinstance(handler, _Lines) and handler.alone for handler in logging.getLogger().handlers)


def _before(as_json: bool) -> list[structlog.typing.Processor]:
    """What every line gets, whichever logger it comes from. Only machines want what a message says once more as fields."""
    import structlog

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=as_json, key="time" if as_json else "timestamp"),
        *([structlog.stdlib.ExtraAdder()] if as_json else []),
    ]


def _after(as_json: bool, colors: bool) -> list[structlog.typing.Processor]:
    import structlog

    # plain: the default prints the values of every frame's variables, prompts and keys among them
    console = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
    json = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *(json if as_json else [console])]


class _Lines(logging.StreamHandler[Any]):
    """Writes whole lines: a progress bar on the same terminal steps aside for each. alone: nothing else writes there."""

    def __init__(self, stream: Any, *, alone: bool) -> None:
        super().__init__(stream)
        self.alone = alone

    def emit(self, record: logging.LogRecord) -> None:
        with self._without_bars():
            super().emit(record)

    @contextmanager
    def _without_bars(self) -> Iterator[None]:
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)  # whoever draws bars has imported it
        if bars is None or not self.stream.isatty():
            yield
        else:
            with bars.external_write_mode(file=self.stream):
                yield
