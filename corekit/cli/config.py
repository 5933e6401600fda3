"""`corekit config`: the merged configuration with the origin of every value, and what a configuration may say."""

from __future__ import annotations

import json

import click

from .common import overrides, read, target
from .failing import CONFIG, failing, say
from .group import Group


@click.group(cls=Group)
def config() -> None:
    """Show the configuration, or what it may say."""


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
            say(line)


@config.command(short_help="Print the JSON schema of the TOML file, for editors.")
@target
@overrides
def schema(target: str | None, overrides: tuple[str, ...]) -> None:
    """Print the JSON schema of the TOML file: keys, types, bounds, defaults, and the parts that are installed, with their options.

    With FILE, `[plugins] import` and `block` of that file count. An editor that knows the schema completes and checks as you write:
    put `#:schema corekit.schema.json` into the first line of the file.
    """
    from corekit.compose.catalog import build_catalog
    from corekit.compose.discovery import discover
    from corekit.compose.schema import schema as written

    with failing(CONFIG, debug=False):
        config = read(target, overrides)
        catalog = build_catalog(discover(imports=config.plugins.import_, blocked=config.plugins.block))
        say(json.dumps(written(catalog), indent=2, ensure_ascii=False))
