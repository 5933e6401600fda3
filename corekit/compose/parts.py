"""From names to parts: what the configuration wishes for each slot, which provider grants it, and how it is built.

Knows providers and places in the configuration; nothing of what a part does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from corekit.api import API_VERSION, SLOTS, BuildContext, CorekitError, Provider
from corekit.weights.errors import SourceError

from .catalog import OWN, Candidate, Catalog, refusals
from .config import Config
from .contract import check_component
from .discovery import Plugin
from .errors import ConfigError, ModelError, near
from .options import read_options
from .tables import ListedChoice

PYTHON = Plugin(distribution="(python)", version="", entry="argument", module="")
OF_THE_MODEL = ("model", "tokenizer")
"""What they raise on purpose when they are built is about the model's files: their options were checked before."""
DEFAULT_STACK = ("cpu-swap", "lru-prefix", "free-list")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One part that is wanted: a name or "auto", with its options; or what Python gave."""

    slot: str
    name: str
    place: str
    """The key that names it, with its origin."""
    options_path: tuple[str | int, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)
    given: Candidate | None = None
    origin: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One slot filled: a provider, checked options, and why it is this one."""

    candidate: Candidate
    options: Any
    place: str
    why: str
    catalog: Catalog | None = field(default=None, repr=False)
    """The providers of its slot, from which it may wrap one."""
    inside: tuple[str, ...] = ()
    """The parts that wrap it, by their full names, outermost first."""

    @property
    def slot(self) -> str:
        return self.candidate.slot

    @property
    def name(self) -> str:
        return self.candidate.name

    @property
    def distribution(self) -> str:
        return self.candidate.plugin.distribution

    @property
    def version(self) -> str:
        return self.candidate.plugin.version

    def build(self, context: BuildContext) -> Any:
        """The component, its signatures checked. What the provider raises keeps its traceback and gains a note."""
        whole = context if self.catalog is None else replace(context, build=partial(build_wrapped, self, self.catalog, context))
        with self.named("built"):
            try:
                component = self.candidate.provider.build(whole, self.options)
            except CorekitError as error:
                if self.slot not in OF_THE_MODEL or isinstance(error, ConfigError | SourceError):
                    raise
                raise ModelError(str(error)) from error
        check_component(self.candidate, component, self.place)
        return component

    @contextmanager
    def named(self, done: str) -> Iterator[None]:
        """Whatever is raised inside says whose fault it is."""
        try:
            yield
        except Exception as error:
            error.add_note(f"{self.slot} {self.candidate} raised this while it was {done}. It is named by {self.place} ({self.why}).")
            raise


def build_wrapped(part: Part, catalog: Catalog, context: BuildContext, name: str, options: Mapping[str, Any]) -> Any:
    """`BuildContext.build`: what `part` wraps, checked like any part. One that would wrap itself, however deep, is refused."""
    place = f"{part.place}: what {part.candidate} wraps"
    candidate, inside = catalog.find(part.slot, name, place), (*part.inside, part.candidate.full_name)
    if candidate.full_name in inside:
        raise ConfigError(
            f"{place} = {name!r}: it would wrap itself without end: {' in '.join((candidate.full_name, *reversed(inside)))}. Name another provider"
        )
    checked = read_options(candidate, options, lambda below: ".".join((f"{place} = {name!r}, options", *map(str, below))), {})
    other = Part(candidate=candidate, options=checked, place=place, why=f"wrapped by {part.name}", catalog=catalog, inside=inside)
    check_refusals([other], context)
    return other.build(context)


def wishes(config: Config, given: Mapping[str, Any], catalog: Catalog, device: Callable[[], str]) -> dict[str, tuple[Wish, ...]]:
    """What is wanted for every slot. `given` has components or providers from Python, by slot; they rule over the file.

    `device` is called only where the answer depends on it: a misspelt name should not have to wait for PyTorch.
    """
    wanted: dict[str, tuple[Wish, ...]] = {}
    for slot in SLOTS:
        handed = given.get(slot.name)
        if handed is not None:
            parts = handed if slot.chosen == "many" else (handed,)
            wanted[slot.name] = tuple(_handed(slot.name, part) for part in parts)
        elif slot.chosen == "stack":
            wanted[slot.name] = _stack(config, catalog, device)
        elif slot.chosen == "one":
            wanted[slot.name] = (_wish(config, slot.name, (slot.name,), getattr(config, slot.name)),)
        else:
            wanted[slot.name] = tuple(
                _wish(config, slot.name, (slot.name, index), choice)
                for index, choice in enumerate(getattr(config, slot.name))
                if isinstance(choice, ListedChoice)
            )
    return wanted


def settle(wish: Wish, catalog: Catalog, config: Config, environ: Mapping[str, str], context: BuildContext | None = None) -> Part | None:
    """The part that grants a wish. None: it is "auto", and without a context nobody can tell."""
    if wish.given is not None:
        defaults = read_options(wish.given, {}, lambda below: wish.place, environ)
        return Part(candidate=wish.given, options=defaults, place=wish.place, why="given in Python", catalog=catalog.only(wish.slot))
    if wish.name == "auto":
        if context is None:
            return None
        candidate, why = catalog.best(wish.slot, context, wish.place)
    else:
        is_default = wish.origin == "default"
        candidate = catalog.find(wish.slot, wish.name, wish.place, is_default=is_default)
        why = "the default" if is_default else f"named: {wish.origin}"
    path = wish.options_path
    options = read_options(candidate, wish.raw, lambda below: config.place(*path, *below), environ)
    return Part(candidate=candidate, options=options, place=wish.place, why=why, catalog=catalog.only(wish.slot))


def settle_all(wanted: Iterable[Wish], catalog: Catalog, config: Config, environ: Mapping[str, str], context: BuildContext | None = None) -> list[Part]:
    """Every part that can be told, or a ConfigError with the faults of all of them."""
    parts: list[Part] = []
    problems: list[str] = []
    for wish in wanted:
        try:
            if (part := settle(wish, catalog, config, environ, context)) is not None:
                parts.append(part)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return parts


def check_refusals(parts: Iterable[Part], context: BuildContext) -> None:
    """Asks every part whether it can run here; raises ConfigError with all that cannot, and why."""
    problems = [f"{part.place}: {part.candidate} cannot run here: {reason}" for part in parts for reason in refusals(part.candidate, context)]
    if problems:
        raise ConfigError(problems)


def _wish(config: Config, slot: str, path: tuple[str | int, ...], choice: Any) -> Wish:
    return Wish(
        slot=slot,
        name=choice.use,
        place=config.place(*path, "use"),
        options_path=(*path, "options"),
        raw=choice.options,
        origin=config.origin(*path, "use"),
    )


def _handed(slot: str, part: Any) -> Wish:
    provider = part if isinstance(part, Provider) else _of(part)
    candidate = Candidate(slot=slot, provider=provider, plugin=PYTHON)
    return Wish(slot=slot, name=provider.name, place=f"the argument {slot}", given=candidate)


def _of(component: object) -> Provider[Any]:
    return Provider(name=type(component).__name__, api=API_VERSION, summary="given in Python", build=lambda context, options: component)


def _stack(config: Config, catalog: Catalog, device: Callable[[], str]) -> tuple[Wish, ...]:
    """Layers top to bottom, each with its own options table. Options of a layer that is not in the stack are an error."""
    table = config.block_allocator
    names: Sequence[str] = table.stack if table.stack is not None else _default_stack(catalog, device)
    place, origin = config.place("block_allocator", "stack"), config.origin("block_allocator", "stack")
    problems: list[str] = [f"{place}: {name!r} is there twice; a layer under itself would be disabled" for name in sorted(set(names)) if names.count(name) > 1]
    problems += [
        f"{config.place('block_allocator', 'options', name)}: there is no such layer in the stack {list(names)}.{near(name, names)}"
        for name in table.options
        if name not in names
    ]
    if not names:
        problems.append(f'{place}: a stack needs at least one layer, as in ["free-list"]')
    if problems:
        raise ConfigError(problems)
    return tuple(
        Wish(
            slot="block_allocator",
            name=name,
            place=place,
            options_path=("block_allocator", "options", name),
            raw=table.options.get(name, {}),
            origin=origin,
        )
        for name in names
    )


def _default_stack(catalog: Catalog, device: Callable[[], str]) -> tuple[str, ...]:
    installed = {candidate.name for candidate in catalog.candidates["block_allocator"] if candidate.plugin.distribution == OWN}
    return tuple(name for name in DEFAULT_STACK if name in installed and (name != "cpu-swap" or device().startswith("cuda")))
