"""`corekit plugins`: list what is installed and what failed to register. `new` and `check` are verbs below it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from .common import overrides, read
from .failing import CONFIG, failing, say
from .group import Group
from .plugins_check import check
from .plugins_new import new

if TYPE_CHECKING:
    from corekit.compose.catalog import Candidate, Catalog
    from corekit.compose.config import Config

Refusals = Mapping[str, list[str]]
"""Slot and full name, joined by a blank -> reasons; without an entry nobody asked."""


class Plugins(Group):
    """Without a verb it lists: `corekit plugins`, `corekit plugins --json`, `corekit plugins corekit.toml`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        lists = not args or args[0].endswith(".toml") or (args[0].startswith("-") and args[0] not in ("-h", "--help"))
        return super().parse_args(ctx, ["list", *args] if lists else args)


@click.group(cls=Plugins)
def plugins() -> None:
    """List, check and begin plugins. Without a command: `list`."""


plugins.add_command(new)
plugins.add_command(check)


@plugins.command(name="list", short_help="List every provider that is installed.")
@click.argument("file", metavar="[FILE]", required=False)
@overrides
@click.option("--refusals", "ask", is_flag=True, help="Compose FILE without weights, and ask every provider whether it can run there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--verbose", is_flag=True, help="Show the traceback of each failure.")
def list_all(file: str | None, overrides: tuple[str, ...], ask: bool, as_json: bool, verbose: bool) -> None:
    """List every provider: slot, name, distribution, version, contract version and promise. FILE: apply its [plugins] table.

    A provider may refuse to run with a model, or on a machine; it is asked when --refusals says so, since that opens the model's source.
    """
    from corekit.compose.catalog import build_catalog
    from corekit.compose.discovery import discover

    with failing(CONFIG, debug=False):
        config = read(None, overrides, file=file)
        catalog = build_catalog(discover(imports=config.plugins.import_, blocked=config.plugins.block))
        reasons = _refusals(config, catalog) if ask else {}
        if as_json:
            say(json.dumps(_document(catalog, reasons), indent=2))
            return
        for line in _lines(catalog, reasons, verbose):
            say(line)


def _refusals(config: Config, catalog: Catalog) -> Refusals:
    from corekit.compose.catalog import refusals
    from corekit.compose.composition import compose

    outside: dict[str, tuple[()]] = {"frontend": (), "observer": ()}  # they look at nothing that the rest decides
    context = compose(config, given=outside, catalog=catalog, clock=time.monotonic).context
    return {_key(found): refusals(found, context) for slot in catalog.candidates.values() for found in slot if not found.refused}


def _key(candidate: Candidate) -> str:
    return f"{candidate.slot} {candidate.full_name}"


def _promises(catalog: Catalog) -> Iterator[tuple[Candidate, str]]:
    from corekit.api import SLOTS

    for slot in SLOTS:
        for found in sorted(catalog.candidates[slot.name], key=lambda c: c.full_name):
            yield found, "stable" if slot.stable else "provisional"


def _lines(catalog: Catalog, reasons: Refusals, verbose: bool) -> Iterator[str]:
    rows = [("SLOT", "NAME", "DISTRIBUTION", "VERSION", "API", "SLOT IS", "SUMMARY")]
    for found, promise in _promises(catalog):
        why = [f"REFUSED: {found.refused}"] if found.refused else [f"refuses: {reason}" for reason in reasons.get(_key(found), ())]
        summary = "; ".join(why) or found.provider.summary
        rows.append((found.slot, found.name, found.plugin.distribution, found.plugin.version or "-", str(found.provider.api), promise, summary))
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row[:6], widths, strict=True)), row[6]])
    for failure in catalog.discovery.failures:
        yield f"\nfailed: {failure}"
        if verbose:
            yield failure.traceback.rstrip()
    for note in catalog.discovery.notes:
        yield f"\nnote: {note}"


def _document(catalog: Catalog, reasons: Refusals) -> dict[str, Any]:
    """The same for programs. `refusals` is null where nobody asked."""
    return {
        "providers": [
            {
                "slot": found.slot,
                "name": found.name,
                "distribution": found.plugin.distribution,
                "version": found.plugin.version or None,
                "module": found.plugin.module,
                "api": found.provider.api,
                "promise": promise,
                "rank": found.provider.rank,
                "summary": found.provider.summary,
                "refused": found.refused or None,
                "refusals": reasons.get(_key(found)),
            }
            for found, promise in _promises(catalog)
        ],
        "failures": [
            {
                "distribution": failure.plugin.distribution,
                "version": failure.plugin.version or None,
                "module": failure.plugin.module,
                "hook": failure.hook,
                "reason": failure.reason,
            }
            for failure in catalog.discovery.failures
        ],
        "notes": list(catalog.discovery.notes),
    }
