"""Log lines of the whole process: readable, or JSON for a server without a terminal. Always on stderr."""

from __future__ import annotations

import logging
import sys

LEVELS = ("debug", "info", "warning", "error")


def set_up(level: str, *, for_machines: bool = False) -> None:
    """Route the standard library's logging, which every room uses, through structlog. for_machines: JSON where there is no terminal."""
    import structlog

    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    as_json = for_machines and not on_terminal
    # plain: the default prints the values of every frame's variables, prompts and keys among them
    console = structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=structlog.dev.plain_traceback)
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer() if as_json else console
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=as_json),
    ]
    after: list[structlog.typing.Processor] = [structlog.stdlib.ProcessorFormatter.remove_processors_meta]
    if as_json:
        after.append(structlog.processors.format_exc_info)
    handler = logging.StreamHandler(sys.stderr) if sys.stderr is not None else logging.NullHandler()  # a daemon may have none
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(foreign_pre_chain=before, processors=[*after, renderer]))
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
