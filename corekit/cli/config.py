"""`corekit config show`: the merged configuration, with the origin of every value."""

from __future__ import annotations

import click

from .common import overrides, read, target
from .failing import CONFIG, failing
from .group import Group


@click.group(cls=Group)
def config() -> None:
    """Show the configuration."""


@config.command(short_help="Print the merged configuration and its origins.")
@target
@overrides
def show(target: str | None, overrides: tuple[str, ...]) -> None:
    """Print the merged configuration as TOML and where each value came from.

    Secret options, and all texts among those of a part that is not installed, appear as the name of a variable.
    Order: defaults < FILE < COREKIT__TABLE__KEY variables < --set. Names of parts and their options are checked by `corekit check`.
    """
    from corekit.compose.catalog import build_catalog
    from corekit.compose.discovery import discover
    from corekit.compose.secrets import secrets_of
    from corekit.compose.show import show as lines

    with failing(CONFIG, debug=False):
        config = read(target, overrides)
        catalog = build_catalog(discover(imports=config.plugins.import_, blocked=config.plugins.block))
        for line in lines(config, secrets_of(config, catalog)):
            click.echo(line)
