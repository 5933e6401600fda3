"""Slot -> name -> providers, and how one is chosen: by name, or the best that runs here. Knows no order of registration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from corekit.api import API_VERSION, SLOTS, BuildContext, Provider
from corekit.weights.errors import SourceError

from .discovery import Discovery, Failure, Plugin
from .errors import ConfigError, listed, near

OWN = "corekit"
"""The distribution of the built-in and bundled parts."""
INSTALL = (
    " Install the distribution that has it (corekit itself for corekit's own parts: from a mere source tree they are unknown), "
    'or name its module, as in [plugins] import = ["corekit_openai_http"].'
)
ACCEPTED = tuple(version for version in (API_VERSION, API_VERSION - 1) if version > 0)
"""Versions of the contract: this one, and the one before once there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One provider with its origin. `refused` says why it cannot be used at all."""

    slot: str
    provider: Provider[Any]
    plugin: Plugin
    refused: str = ""

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def full_name(self) -> str:
        return f"{self.plugin.distribution}:{self.provider.name}"

    def __str__(self) -> str:
        version = f" {self.plugin.version}" if self.plugin.version else ""
        return f"{self.name} from {self.plugin.distribution}{version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All that could be chosen, and all that failed to register."""

    candidates: Mapping[str, tuple[Candidate, ...]]
    discovery: Discovery = field(repr=False)

    def names(self, slot: str) -> list[str]:
        """What TOML can say for this slot: bare names, and full names where a bare one would not do."""
        found = [candidate for candidate in self.candidates.get(slot, ()) if not candidate.refused]
        bare = [candidate.name for candidate in found]
        return sorted(candidate.full_name if bare.count(candidate.name) > 1 else candidate.name for candidate in found)

    def failure_of(self, name: str) -> Failure | None:
        """The failure of a plugin that is called like the part, and most likely has it: nothing else explains better why it is not there."""
        distribution, _, bare = name.rpartition(":")
        called = {distribution or f"{OWN}-{bare}", bare, bare.replace("-", "_")}
        return next((f for f in self.discovery.failures if called & {f.plugin.distribution, f.plugin.entry, f.plugin.module}), None)

    def only(self, slot: str) -> Catalog:
        """What it knows of one slot: small enough to travel with a part."""
        return Catalog(candidates={slot: self.candidates.get(slot, ())}, discovery=replace(self.discovery, providers=()))

    def find(self, slot: str, name: str, where: str, *, is_default: bool = False) -> Candidate:
        """The provider of this name. `where` is the place in the configuration that names it.

        is_default: nobody chose the name, so it means corekit's own part, whatever else is installed.
        """
        candidates = self.candidates.get(slot, ())
        found = [candidate for candidate in candidates if name in (candidate.name, candidate.full_name)]
        if is_default and len(found) > 1:
            found = [candidate for candidate in found if candidate.plugin.distribution == OWN] or found
        if len(found) > 1:
            raise ConfigError(f"{where} = {name!r}: {len(found)} distributions have a provider of that name. Say which: {listed(c.full_name for c in found)}")
        if not found:
            if failure := self.failure_of(name):
                raise ConfigError(f"{where} = {name!r}: its plugin failed to register: {failure}")
            names = self.names(slot)
            raise ConfigError(f"{where} = {name!r}: no such provider.{self._advice(name, names)} Available: {listed(names)}.{self._failed()}")
        if found[0].refused:
            raise ConfigError(f"{where} = {name!r}: {found[0].refused}")
        return found[0]

    def best(self, slot: str, context: BuildContext, where: str) -> tuple[Candidate, str]:
        """`auto`: the highest rank that does not refuse, and why it was picked. A negative rank is chosen by name only.

        Of equal ranks corekit's own part is taken: to install a plugin that says nothing of its rank changes no choice.
        """
        candidates = sorted(self.candidates.get(slot, ()), key=lambda c: (-c.provider.rank, c.plugin.distribution != OWN, c.name, c.plugin.distribution))
        passed: list[str] = []
        for candidate in candidates:
            if candidate.provider.rank < 0 or candidate.refused:
                continue
            if not (reasons := refusals(candidate, context)):
                over = f"; passed over {'; '.join(passed)}" if passed else ""
                return candidate, f"auto: highest rank ({candidate.provider.rank}) that runs here{over}"
            passed.append(f"{candidate.name}: {', '.join(reasons)}")
        by_name = [c.name for c in candidates if c.provider.rank < 0 and not c.refused and not refusals(c, context)]
        name_one = f" Only when named: {listed(by_name)}." if by_name else ""
        raise ConfigError(f"{where} = 'auto': no provider runs here. {'; '.join(passed) or 'None is installed'}.{name_one}{self._failed()}")

    def _advice(self, name: str, names: Iterable[str]) -> str:
        """What to do about a name that is not there. Nobody knows the parts of a distribution that was left alone."""
        blocked = {plugin.distribution for plugin in self.discovery.blocked}
        kept_out = f" [plugins] block keeps out {listed(blocked)}: if the part is in there, remove it from the list." if blocked else ""
        return near(name, names) + kept_out or INSTALL

    def _failed(self) -> str:
        return "".join(f"\n  A plugin failed to register: {failure}" for failure in self.discovery.failures)


def build_catalog(discovery: Discovery, given: Iterable[Candidate] = ()) -> Catalog:
    """given: providers that Python handed in, besides those that were discovered."""
    slots: dict[str, list[Candidate]] = {slot.name: [] for slot in SLOTS}
    for found in discovery.providers:
        refused = ""
        if found.provider.api not in ACCEPTED:
            spoken = " or ".join(map(str, ACCEPTED))
            refused = f"{found.plugin} was written for version {found.provider.api} of the contract; this corekit accepts {spoken}. Install a matching version."
        slots[found.slot].append(Candidate(slot=found.slot, provider=found.provider, plugin=found.plugin, refused=refused))
    for candidate in given:
        slots[candidate.slot].append(candidate)
    return Catalog(candidates={slot: tuple(candidates) for slot, candidates in slots.items()}, discovery=discovery)


def refusals(candidate: Candidate, context: BuildContext) -> list[str]:
    """Why a provider cannot run in this context. One that cannot even say so is not used either; a damaged model is no reason to pass one over."""
    try:
        return list(candidate.provider.refuse(context))
    except SourceError:
        raise
    except Exception as error:
        return [f"refuse() raised {type(error).__name__}: {error}"]
