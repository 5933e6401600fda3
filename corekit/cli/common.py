"""What several verbs share: which file or source, overrides, log level, and reading them into a configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .log import FORMAT, FORMATS, LEVELS, tell

if TYPE_CHECKING:
    from corekit.compose.config import Config

F = TypeVar("F", bound=Callable[..., Any])


def target(function: F) -> F:
    return click.argument("target", metavar="[FILE|SOURCE]", required=False)(function)


def overrides(function: F) -> F:
    return click.option("--set", "overrides", metavar="TABLE.KEY=VALUE", multiple=True, help="Override one value; may be repeated.")(function)


def talk(function: F) -> F:
    """--log-level, --log-format and --debug."""
    function = click.option("--debug", is_flag=True, envvar="COREKIT_DEBUG", help="Show tracebacks (also: COREKIT_DEBUG=1).")(function)
    function = click.option(
        "--log-format",
        type=click.Choice(FORMATS),
        default="auto",
        envvar="COREKIT_LOG_FORMAT",
        expose_value=False,
        callback=_keep_format,
        show_default=True,
        help="Log lines for people, or one JSON object a line; auto: JSON where `serve` has no terminal (also: COREKIT_LOG_FORMAT).",
    )(function)
    return click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True, help="Least severe log line to show.")(function)


def _keep_format(ctx: click.Context, option: click.Parameter, value: str) -> None:
    ctx.meta[FORMAT] = value


def read(target: str | None, overrides: tuple[str, ...], options: Mapping[str, Any] | None = None, *, file: str | None = None) -> Config:
    """The configuration of a verb: a target that ends in .toml is a file, anything else a source of weights."""
    from corekit.compose.config import load
    from corekit.compose.surroundings import environment

    is_file = target is not None and target.endswith(".toml")
    path = file or (target if is_file else None)
    given = {name: value for name, value in (options or {}).items() if value is not None and value != ()}
    return load(Path(path) if path else None, overrides=overrides, environ=environment(), source=None if is_file else target, options=given)


def say_loading(config: Config, log_level: str) -> None:
    """One line at once: libraries and weights take seconds. Who wants to see warnings alone does not see it."""
    if log_level in ("debug", "info"):
        tell(f"loading {config.model.use if config.model.source == 'none' else config.model.source} ...")
