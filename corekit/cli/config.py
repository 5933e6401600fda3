"""`corekit config show`: the merged configuration, with the origin of every value."""

from __future__ import annotations

import click

from .common import overrides, read, target
from .failing import CONFIG, failing


@click.group()
def config() -> None:
    """Show the configuration."""


@config.command()
@target
@overrides
def show(target: str | None, overrides: tuple[str, ...]) -> None:
    """Print the merged configuration as TOML and where each value came from.

    Order: defaults < FILE < COREKIT__TABLE__KEY variables < --set. Names of parts and their options are checked by `corekit check`.
    """
    from corekit.compose.show import show as lines

    with failing(CONFIG, debug=False):
        for line in lines(read(target, overrides)):
            click.echo(line)
