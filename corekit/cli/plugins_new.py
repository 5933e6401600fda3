"""`corekit plugins new`: begin a package of a plugin."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from .failing import CONFIG, USAGE, fail, failing, say


@click.command(short_help="Begin a package with a working part, its proof and a README.")
@click.argument("name")
@click.option("--slot", required=True, help="What the part fills: scheduler_policy, sampler, observer and so on.")
@click.option("--into", type=click.Path(path_type=Path), default=Path(), help="Folder in which the package's own folder is made.  [default: here]")
def new(name: str, slot: str, into: Path) -> None:
    """Write a package NAME: a part that works, its entry point, its kit test and a README. Nothing is ever overwritten.

    NAME is the distribution, as in corekit-lifo; TOML then says `use = "lifo"`.
    """
    from corekit.api import API_VERSION
    from corekit.compose.catalog import build_catalog
    from corekit.compose.discovery import discover
    from corekit.scaffold import Package, ScaffoldError, write_package

    package = Package(distribution=name, slot=slot)
    with failing(CONFIG, debug=False):
        for found in build_catalog(discover()).candidates.get(slot, ()):
            if found.name == package.provider:
                fail(f"{name!r}: slot {slot} has {found} already, and TOML could not tell the two apart. Choose another name.", USAGE)
    try:
        folder = write_package(package, into, api=API_VERSION)
    except ScaffoldError as error:
        fail(f"plugins new: {error}.", USAGE)
    say(f"{folder}: a part for slot {slot} that TOML calls {package.provider!r}. Next:\n")
    say(f"  pip install -e {shlex.quote(f'{folder}[test]')}")
    say(f"  corekit plugins check {package.provider}")
    say(f"  {'$EDITOR'} {shlex.quote(str(folder / package.module / 'part.py'))}\n")
    say(f"How to use it in a TOML file: {folder / 'README.md'}")
