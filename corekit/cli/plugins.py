"""`corekit plugins`: what is installed, what failed to register, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from .common import overrides, read
from .failing import CONFIG, failing

if TYPE_CHECKING:
    from corekit.compose.catalog import Catalog


@click.command()
@click.argument("file", metavar="[FILE]", required=False)
@overrides
@click.option("--verbose", is_flag=True, help="Show the traceback of each failure.")
def plugins(file: str | None, overrides: tuple[str, ...], verbose: bool) -> None:
    """List every provider: slot, name, distribution, version, contract version and promise. FILE: apply its [plugins] table."""
    from corekit.compose.catalog import build_catalog
    from corekit.compose.discovery import discover

    with failing(CONFIG, debug=False):
        table = read(None, overrides, file=file).plugins
        catalog = build_catalog(discover(imports=table.import_, blocked=table.block))
        for line in _lines(catalog, verbose):
            click.echo(line)


def _lines(catalog: Catalog, verbose: bool) -> Iterator[str]:
    from corekit.api import SLOTS

    rows = [("SLOT", "NAME", "DISTRIBUTION", "VERSION", "API", "SLOT IS", "SUMMARY")]
    for slot in SLOTS:
        for found in sorted(catalog.candidates[slot.name], key=lambda c: c.full_name):
            promise = "stable" if slot.stable else "provisional"
            summary = f"REFUSED: {found.refused}" if found.refused else found.provider.summary
            rows.append((slot.name, found.name, found.plugin.distribution, found.plugin.version or "-", str(found.provider.api), promise, summary))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True)), row[6]])
    for failure in catalog.discovery.failures:
        yield f"\nfailed: {failure}"
        if verbose:
            yield failure.traceback.rstrip()
    for note in catalog.discovery.notes:
        yield f"\nnote: {note}"
