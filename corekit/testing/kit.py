"""What the kits of all slots share: the provider under test, its options, and the laws of any provider. Knows no slot's own laws."""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from corekit.api import SLOTS, BuildContext, Provider
from corekit.compose.catalog import ACCEPTED, Candidate, Catalog, build_catalog
from corekit.compose.contract import check_component
from corekit.compose.discovery import NAME, Plugin, discover
from corekit.compose.options import read_options
from corekit.compose.parts import Part, build_wrapped
from corekit.compose.surroundings import environment

_PLACE = "the kit"
_PATIENCE = 1.0
"""Seconds in which a thread that was told to end may do so."""


def _installed() -> Catalog:
    return build_catalog(discover())


def running() -> Collection[Any]:
    """Threads and child processes of this process."""
    return {*threading.enumerate(), *multiprocessing.active_children()}


def left_running(before: Collection[Any]) -> str:
    """Names of those that were begun since and do not end; "" when there are none."""
    end = time.monotonic() + _PATIENCE
    while (left := set(running()).difference(before)) and time.monotonic() < end:
        time.sleep(0.005)
    return ", ".join(sorted(one.name for one in left))


class Kit:
    """A law is a method `test_...` that takes nothing, so that it runs in pytest and outside of it alike.

    `provider`: the Provider object, or the name of an installed one as TOML would say it. `options`: what the options table in
    TOML would say. A part that needs another surrounding than its slot's kit offers overrides `context`.
    """

    slot: ClassVar[str]
    provider: ClassVar[Provider[Any] | str]
    options: ClassVar[Mapping[str, Any]] = {}

    def context(self) -> BuildContext:
        """What the part is built in. A kit fills in what its slot may count on."""
        return BuildContext()

    def candidate(self) -> Candidate:
        """The provider and its origin."""
        provider = getattr(self, "provider", None)
        if isinstance(provider, str):
            return _installed().find(self.slot, provider, _PLACE)
        assert isinstance(provider, Provider), (
            f"provider is {provider!r}: set `provider` in the class to the Provider object of the part (not the part itself), or the name of an installed one"
        )
        return Candidate(slot=self.slot, provider=provider, plugin=Plugin(distribution="(kit)", version="", entry="kit", module=""))

    def build(self, context: BuildContext | None = None) -> Any:
        """A fresh component, built as the engine would: options checked, refusals heard, signatures compared."""
        context, candidate = context or self.context(), self.candidate()
        options = read_options(candidate, self.options, lambda path: ".".join((_PLACE, "options", *map(str, path))), environment())
        reasons = list(candidate.provider.refuse(context))
        assert not reasons, f"{candidate} refuses the kit's context: {'; '.join(reasons)}. Override `context`, or run the kit where it can work."
        part = Part(candidate=candidate, options=options, place=_PLACE, why="the provider under test")
        component = candidate.provider.build(replace(context, build=lambda name, raw: build_wrapped(part, _installed(), context, name, raw)), options)
        check_component(candidate, component, _PLACE)
        return component

    def test_provider_says_what_it_is(self) -> None:
        """The name is kebab-case, the contract version is one that this corekit accepts, the summary is one line that says something."""
        provider = self.candidate().provider
        assert NAME.fullmatch(provider.name), f"name {provider.name!r} must be kebab-case: small letters, digits and single hyphens"
        assert provider.api in ACCEPTED, f"api = {provider.api}, this corekit accepts {ACCEPTED}"
        assert re.fullmatch(r"\S[^\n]{9,}", provider.summary), (
            f"summary {provider.summary!r} must be one line, 10 characters or more, that says what the part does"
        )

    def test_signatures_fit_the_contract(self) -> None:
        """A built component has every member of its slot's Protocol, and of the optional abilities that it shows, with fitting signatures."""
        assert self.slot in {slot.name for slot in SLOTS}
        self.build()

    def test_two_components_share_nothing(self) -> None:
        """Two engines in one process have parts of their own."""
        assert self.build() is not self.build(), "build must make a new component each time it is called"
