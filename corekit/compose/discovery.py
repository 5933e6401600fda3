"""Finds plugins and asks each for its providers. One broken plugin, distribution or hook never hides the others.

Knows entry points and pluggy; nothing of which provider will be chosen. Nothing here outlives the returned object.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import pluggy
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from corekit import __version__
from corekit.api import GROUP, SLOTS, Provider, hookspecs

from .errors import listed, near, place_of

BUILTIN = "corekit.builtin.plugin"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
STARRED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A module that registers providers, and where it came from."""

    distribution: str
    version: str
    entry: str
    module: str

    def __str__(self) -> str:
        version = f" {self.version}" if self.version else ""
        return f"{self.distribution}{version} (plugin {self.entry!r}, module {self.module})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    slot: str
    provider: Provider[Any]
    plugin: Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why a plugin registers nothing."""

    plugin: Plugin
    reason: str
    hook: str | None = None
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.plugin}{f', hook {self.hook}' if self.hook else ''}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """Everything that was found. A plugin is whole: either all its providers are here, or a failure says why none is."""

    providers: tuple[Registered, ...]
    failures: tuple[Failure, ...]
    distributions: tuple[str, ...] = ()
    """Those that have plugins, blocked ones included."""
    blocked: tuple[Plugin, ...] = ()
    """Left alone because `[plugins] block` names their distribution: what they would register is not known."""
    notes: tuple[str, ...] = ()
    """What is odd and harms nothing: stale metadata, blocked distributions."""


class _Broken(Exception):
    def __init__(self, reason: str, hook: str | None = None) -> None:
        super().__init__(reason)
        self.hook = hook


def discover(*, imports: Sequence[str] = (), blocked: Sequence[str] = ()) -> Discovery:
    """The built-in plugin first, then every entry point of group `corekit`, then the modules of `imports`."""
    notes: list[str] = []
    refused = {canonicalize_name(name) for name in blocked}
    plugins = [Plugin(distribution="corekit", version=__version__, entry="builtin", module=BUILTIN)]
    failures: list[Failure] = []
    distributions: list[str] = []
    left: list[Plugin] = []
    for distribution, version, entries in _distributions(notes, failures):
        if entries:
            distributions.append(distribution)
        found = [Plugin(distribution=distribution, version=version, entry=e.name, module=e.value.partition(":")[0].strip()) for e in entries]
        if found and distribution in refused:
            notes.append(f"{distribution} {version} is blocked by [plugins] block")
            left += found
            continue
        plugins += found
    plugins += [Plugin(distribution=name, version="", entry="[plugins] import", module=name) for name in imports]
    providers: list[Registered] = []
    seen: dict[str, Plugin] = {}
    for plugin in plugins:
        if (first := seen.setdefault(plugin.module, plugin)) is not plugin:
            if first.distribution != plugin.distribution:
                notes.append(f"{plugin} is registered already, by {first.distribution}")
            continue
        try:
            providers += _register(plugin)
        except KeyboardInterrupt:  # a signal to this process, which the plugin did not raise
            raise
        except BaseException as error:
            text = str(error) if isinstance(error, _Broken) else f"{type(error).__name__}: {error}{place_of(error, __file__)}"
            failures.append(Failure(plugin=plugin, reason=text, hook=getattr(error, "hook", None), traceback=traceback.format_exc()))
    return Discovery(providers=tuple(providers), failures=tuple(failures), distributions=tuple(distributions), blocked=tuple(left), notes=tuple(notes))


def _distributions(notes: list[str], failures: list[Failure]) -> Iterator[tuple[str, str, list[metadata.EntryPoint]]]:
    """(name, version, entry points of our group) of each distribution that has any. Of two of one name, the first on the path counts."""
    seen: set[str] = set()
    for distribution in metadata.distributions():
        if not _mentions_us(distribution):
            continue  # reading the metadata of everything that is installed would take most of the time
        name, version = "?", "?"
        try:
            name, version = canonicalize_name(distribution.metadata["Name"]), distribution.version
            entries = [entry for entry in distribution.entry_points if entry.group == GROUP]
            first = metadata.distribution(name)
        except Exception as error:
            plugin = Plugin(distribution=name, version=version, entry="?", module="?")
            failures.append(Failure(plugin=plugin, reason=f"its metadata cannot be read: {type(error).__name__}: {error}", traceback=traceback.format_exc()))
            continue
        place = distribution.locate_file("")
        if name in seen or (first.version, first.locate_file("")) != (version, place):
            notes.append(f"{name} is there twice: {first.version} in {first.locate_file('')} is used, {version} in {place} is not")
            continue
        seen.add(name)
        yield name, version, entries


def _mentions_us(distribution: metadata.Distribution) -> bool:
    try:
        return GROUP in (distribution.read_text("entry_points.txt") or "")
    except Exception:
        return True  # what is wrong with it is said when it is read


def _register(plugin: Plugin) -> list[Registered]:
    """A plugin manager of its own for each plugin: an exception in one can then be told from that of another."""
    module = importlib.import_module(plugin.module)
    hooks = pluggy.PluginManager(GROUP)
    hooks.add_hookspecs(hookspecs)
    known = {slot.hook for slot in SLOTS}
    _check_names(module, known)
    try:
        hooks.register(module, name=plugin.entry)
        hooks.check_pending()
    except pluggy.PluginValidationError as error:
        hook = next((name for name in sorted(known) if name in str(error)), None)
        raise _Broken(" ".join(str(error).split()), hook) from error
    found: list[Registered] = []
    for slot in SLOTS:
        for answer in _call(getattr(hooks.hook, slot.hook), slot.hook):
            found += [Registered(slot=slot.name, provider=provider, plugin=plugin) for provider in _providers(answer, slot.hook)]
    if not found:
        raise _Broken(f"it has no hook that registers anything. Mark functions named corekit_register_... with corekit.api.hookimpl: {listed(known)}")
    return found


def _check_names(module: ModuleType, known: Iterable[str]) -> None:
    known = set(known)
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("corekit_") and name not in known:
            raise _Broken(f"there is no such hook.{near(name, known)}", name)
        if name in known and not hasattr(function, f"{GROUP}_impl"):
            raise _Broken("the function is not marked with corekit.api.hookimpl", name)
        if name in known and (asked := [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty and p.kind not in STARRED]):
            raise _Broken(
                f"a hook takes nothing, this one takes {listed(asked)}. What a part may know is given to build(context, options) of its Provider", name
            )


def _call(hook: Any, name: str) -> list[Any]:
    try:
        return list(hook())
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _Broken(f"{type(error).__name__}: {error}", name) from error


def _providers(answer: object, hook: str) -> list[Provider[Any]]:
    if not isinstance(answer, Sequence) or not all(isinstance(provider, Provider) for provider in answer):
        raise _Broken(f"must return a sequence of corekit.api.Provider, returned {type(answer).__name__}", hook)
    for provider in answer:
        if faults := list(_faults(provider)):
            raise _Broken(f"Provider {provider.name!r}: {'; '.join(faults)}", hook)
    names = [provider.name for provider in answer]
    if twice := {name for name in names if names.count(name) > 1}:
        raise _Broken(f"registers more than one provider of the name {listed(twice)}. Give each a name of its own", hook)
    return list(answer)


def _faults(provider: Provider[Any]) -> Iterator[str]:
    """A dataclass does not check its fields, and one wrong type would stop the choice among all providers of a slot."""
    if not isinstance(provider.name, str) or not NAME.fullmatch(provider.name):
        yield "name must be kebab-case: small letters, digits and single hyphens"
    for key, kind in (("api", int), ("summary", str), ("rank", int)):
        if type(value := getattr(provider, key)) is not kind:
            yield f"{key} must be {kind.__name__}, is {type(value).__name__}"
    for key in ("build", "refuse"):
        if not callable(getattr(provider, key)):
            yield f"{key} must be callable, is {type(getattr(provider, key)).__name__}"
    options = provider.options
    frozen = getattr(getattr(options, "__dataclass_params__", None), "frozen", False)
    if options is not None and not (isinstance(options, type) and dataclasses.is_dataclass(options) and frozen):
        yield "options must be a frozen dataclass or None"


def unknown_blocks(block: Sequence[str], discovery: Discovery) -> list[str]:
    """Names in `[plugins] block` that block nothing: whoever wrote one believes that it does."""
    known = {*discovery.distributions, *(failure.plugin.distribution for failure in discovery.failures)}
    return [
        f"{name!r}: there is no distribution of that name with plugins.{near(canonicalize_name(name), known)} With plugins: {listed(discovery.distributions)}."
        for name in block
        if canonicalize_name(name) not in known
    ]


def missing_requirements(require: Sequence[str], discovery: Discovery) -> list[str]:
    """What is wrong with `[plugins] require`, all of it: unreadable, not installed, another version, broken."""
    problems = []
    for text in require:
        try:
            wanted = Requirement(text)
        except InvalidRequirement as error:
            problems.append(f"{text!r} is not a requirement such as 'corekit-lifo>=0.1': {' '.join(str(error).split())}")
            continue
        if problem := _requirement(wanted, discovery):
            problems.append(problem)
    return problems


def _requirement(wanted: Requirement, discovery: Discovery) -> str:
    if wanted.marker is not None and not wanted.marker.evaluate():
        return ""
    if wanted.url:
        return f"{wanted}: an address cannot be required; name a version"
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        return f"{wanted}: not installed. Install it: pip install {str(wanted)!r}"
    if not wanted.specifier.contains(version, prereleases=True):
        return f"{wanted}: version {version} is installed. Install another: pip install {str(wanted)!r}"
    name = canonicalize_name(wanted.name)
    if broken := [failure for failure in discovery.failures if failure.plugin.distribution == name]:
        return f"{wanted}: installed and broken. {broken[0]}"
    if not any(found.plugin.distribution == name for found in discovery.providers):
        return f"{wanted}: {version} is installed, but registers no part of corekit"
    return ""
