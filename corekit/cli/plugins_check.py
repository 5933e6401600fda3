"""`corekit plugins check`: is a part what its slot's contract asks for? Signatures, then every law of the slot's kit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from .failing import CONFIG, FAILED, USAGE, fail, failing, say

if TYPE_CHECKING:
    from corekit.compose.catalog import Candidate, Catalog
    from corekit.testing.check import Verdict

MAX_LINES = 12
"""Of a broken law's message, without --verbose."""
HINT = "\n--verbose shows tracebacks"


@click.command(short_help="Check a provider: its signatures, and the laws of its slot's kit.")
@click.argument("name")
@click.option("--slot", help="Slot of the provider, where several have one of that name.")
@click.option("--option", "options", metavar="KEY=VALUE", multiple=True, help="One option of the provider, as its table in TOML would say; may be repeated.")
@click.option("--import", "imports", metavar="MODULE", multiple=True, help="Module on the path with a plugin that is not packaged yet; may be repeated.")
@click.option("--verbose", is_flag=True, help="Show what each law says, and the traceback where one is broken.")
def check(name: str, slot: str | None, options: tuple[str, ...], imports: tuple[str, ...], verbose: bool) -> None:
    """Check the provider NAME, or DISTRIBUTION:NAME: compare its signatures with the contract, and run its slot's kit.

    Capabilities that a kit lets an author declare have their defaults here; a test file of one's own declares them. Exit code 1: something is broken.
    """
    from corekit.testing.check import kit_of, missing_packages, run_kit

    with failing(CONFIG, debug=verbose):
        found = _find(_catalog(imports), name, slot)
        given = _options(options, found)
    say(f"{found}: {found.slot}, version {found.provider.api} of the contract")
    if missing := missing_packages():
        fail(f'plugins check needs {" and ".join(missing)}: pip install "corekit[testing]"', FAILED)
    _check_signatures(found, given, imports, verbose)
    if kit_of(found.slot) is None:
        say("  holds   signatures fit the contract")
        say(f"  no kit  there are no laws for {found.slot} yet; its signatures are all that can be checked")
        return
    verdicts: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        _show(verdict, verbose)

    begin = time.monotonic()
    sound = run_kit(found.slot, found.full_name, given, imports, tell)
    counts = [f"{count} {outcome}" for outcome in ("broken", "skipped") if (count := sum(v.outcome == outcome for v in verdicts))]
    held = sum(verdict.outcome == "holds" for verdict in verdicts)
    say(f"{', '.join([f'{held} laws hold', *counts])} ({time.monotonic() - begin:.1f} s){'' if sound or verbose else HINT}")
    if not sound:
        raise click.exceptions.Exit(FAILED)


def _catalog(imports: tuple[str, ...]) -> Catalog:
    from corekit.compose.composition import find_catalog
    from corekit.compose.config import load

    return find_catalog(load(options={"plugins.import": list(imports)}))


def _find(catalog: Catalog, name: str, slot: str | None) -> Candidate:
    """The one provider that is meant."""
    from corekit.compose.errors import ConfigError, listed, near

    if slot is not None and slot not in catalog.candidates:
        fail(f"--slot {slot}: there is no such slot.{near(slot, catalog.candidates)} Slots: {listed(catalog.candidates)}.", USAGE)
    there = [slot for slot, candidates in catalog.candidates.items() if any(name in (c.name, c.full_name) for c in candidates)]
    if slot is not None and slot not in there and there:
        raise ConfigError(f"--slot {slot}: {name} is no provider of that slot, but of {listed(there)}")
    slots = [slot] if slot in there else there
    if len(slots) > 1:
        fail(f"{name}: {len(slots)} slots have a provider of that name. Say which: {' or '.join(f'--slot {slot}' for slot in slots)}.", USAGE)
    if not slots and (failure := catalog.failure_of(name)):
        raise ConfigError(f"{name}: its plugin failed to register: {failure}")
    if not slots:
        names = {name for slot in catalog.candidates for name in catalog.names(slot)}
        failed = "".join(f"\n  A plugin failed to register: {failure}" for failure in catalog.discovery.failures)
        advice = f"{near(name, names)} `corekit plugins` lists those that are there; a module that is not installed is named with --import."
        raise ConfigError(f"{name}: no such provider.{advice}{failed}")
    return catalog.find(slots[0], name, "plugins check")


def _options(given: tuple[str, ...], candidate: Candidate) -> dict[str, Any]:
    """The options table; raises ConfigError for what the provider would not accept."""
    from corekit.compose.options import read_options
    from corekit.compose.surroundings import environment
    from corekit.compose.tree import Tree, parse_value

    tree = Tree()
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not all(key.strip().split(".")):
            fail(f"--option {text}: must be KEY=VALUE, as in --option patience=5.0", USAGE)
        tree.set(key.strip().split("."), parse_value(value.strip()), f"--option {key.strip()}")
    read_options(candidate, tree.values, lambda path: f"--option {'.'.join(map(str, path))}".rstrip(), environment())
    return tree.values


def _check_signatures(candidate: Candidate, options: Mapping[str, Any], imports: tuple[str, ...], verbose: bool) -> None:
    """Build the part once. Where that fails no law could say anything else."""
    from corekit.testing.check import subject

    part = subject(candidate.slot, candidate.full_name, options, imports)()
    try:
        part.build()
    except Exception as error:
        if verbose:
            import traceback

            traceback.print_exc()
        ours = isinstance(error, AssertionError) or type(error).__module__.startswith("corekit")
        said = str(error) if ours else f"{type(error).__name__}: {error}\nIt could not be built: build(context, options) of its Provider raised this."
        say(f"  BROKEN  signatures\n{_indented(said)}{'' if verbose else HINT}")
        raise click.exceptions.Exit(FAILED) from None


def _show(verdict: Verdict, verbose: bool) -> None:
    word = {"holds": "holds  ", "broken": "BROKEN ", "skipped": "skipped"}[verdict.outcome]
    say(f"  {word} {verdict.law.removeprefix('test_').replace('_', ' ')}")
    if verbose or verdict.outcome == "broken":
        say(_indented(verdict.says))
    if verdict.outcome != "holds":
        lines = (verdict.report if verbose and verdict.report else verdict.message).strip().splitlines()
        more = [f"... {len(lines) - MAX_LINES} lines more with --verbose"] if len(lines) > MAX_LINES and not verbose else []
        say(_indented("\n".join([*(lines if verbose else lines[:MAX_LINES]), *more])))


def _indented(text: str) -> str:
    return "\n".join(f"          {line}" for line in text.splitlines())
