"""Checks once, when a part was built, that it has what its slot's Protocol asks for, with signatures that can be called.

A parameter without a default is passed by position, so its name is the author's choice; one with a default, or behind `*`,
may be passed by name. Knows Protocols, not slots.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Generic, Protocol

from corekit.api import (
    SLOTS,
    SupportsAccounting,
    SupportsAudit,
    SupportsBind,
    SupportsDrafts,
    SupportsEvictionSink,
    SupportsForgetting,
    SupportsLogprobs,
    SupportsObservers,
    SupportsPrefixCache,
    SupportsRoutes,
    SupportsSwap,
)

from .catalog import Candidate
from .errors import ConfigError

OPTIONAL: tuple[tuple[str, type], ...] = (
    ("scheduler_policy", SupportsAccounting),
    ("block_allocator", SupportsPrefixCache),
    ("block_allocator", SupportsSwap),
    ("block_allocator", SupportsEvictionSink),
    ("block_allocator", SupportsForgetting),
    ("block_allocator", SupportsAudit),
    ("sampler", SupportsLogprobs),
    ("frontend", SupportsBind),
    ("frontend", SupportsObservers),
    ("frontend", SupportsRoutes),
    ("model", SupportsDrafts),
)
"""Abilities that the engine looks for once; who has one must have it right."""


def check_component(candidate: Candidate, component: object, where: str) -> None:
    """Raises ConfigError with every difference between component and the Protocol of its slot."""
    protocols = [slot.protocol for slot in SLOTS if slot.name == candidate.slot]
    protocols += [ability for slot, ability in OPTIONAL if slot == candidate.slot and isinstance(component, ability)]
    problems = [problem for protocol in protocols for problem in differences(component, protocol)]
    if problems:
        said = f"{where}: {candidate} built a {type(component).__qualname__} that does not fit the slot {candidate.slot}"
        raise ConfigError([f"{said}: {problem}" for problem in problems])


def differences(component: object, protocol: type) -> Iterator[str]:
    """What component lacks of protocol, one sentence each."""
    for name, wanted in _members(protocol):
        static = inspect.getattr_static(component, name, None)
        if static is None and not hasattr(component, name):
            shown = f"method {name}{_shown(wanted)}" if inspect.isfunction(wanted) else f"attribute {name}"
            yield f"it has no {shown} ({protocol.__name__})"
        elif not inspect.isfunction(wanted):
            if inspect.isroutine(static):
                yield f"{name} is a method, expected an attribute or property ({protocol.__name__})"
        elif isinstance(static, property) or not callable(getattr(component, name, None)):
            yield f"{name} is not a method, expected {name}{_shown(wanted)}"
        else:
            yield from _method(name, getattr(component, name), wanted)


def _members(protocol: type) -> Iterator[tuple[str, Any]]:
    seen: set[str] = set()
    for cls in protocol.__mro__:
        if cls in (object, Protocol, Generic):
            continue
        for name in (*vars(cls), *vars(cls).get("__annotations__", ())):
            if not name.startswith("_") and name not in seen:
                seen.add(name)
                yield name, vars(cls).get(name)


def _method(name: str, found: Any, wanted: Any) -> Iterator[str]:
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return  # native code without a signature
    if reason := _mismatch(signature, _without_self(wanted)):
        yield f"{name}: {reason}. Expected {name}{_without_self(wanted)}, found {name}{signature}"
    elif inspect.iscoroutinefunction(wanted) and not inspect.iscoroutinefunction(inspect.unwrap(found)):
        yield f"{name} must be `async def`"


def _mismatch(found: inspect.Signature, wanted: inspect.Signature) -> str:
    """Why a call that fits `wanted` may not fit `found`; empty when it always does."""
    by_position = [p for p in found.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = {p.name: p for p in found.parameters.values() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    kinds = {p.kind for p in found.parameters.values()}
    used: set[str] = set()
    position = 0
    for parameter in wanted.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            if parameter.kind not in kinds:
                return f"it must take {'*' if parameter.kind is parameter.VAR_POSITIONAL else '**'}{parameter.name}"
            continue
        optional = parameter.default is not parameter.empty
        match = by_name.get(parameter.name)
        if parameter.kind is not parameter.KEYWORD_ONLY:
            at_position = by_position[position] if position < len(by_position) else None
            position += 1
            if at_position is None and parameter.VAR_POSITIONAL not in kinds:
                return f"it takes no parameter {parameter.name!r}"
            if at_position is not None and optional and at_position.name != parameter.name:
                return f"parameter {position} must be called {parameter.name}, it may be passed by name"
            match = at_position
        elif match is None and parameter.VAR_KEYWORD not in kinds:
            return f"it takes no parameter {parameter.name!r}"
        if match is not None:
            used.add(match.name)
            if optional and match.default is match.empty:
                return f"parameter {match.name} needs a default, it may be left out"
    extra = [p for p in found.parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.default is p.empty and p.name not in used]
    return f"it needs a parameter {extra[0].name!r} that no caller passes" if extra else ""


def _without_self(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _shown(function: Any) -> str:
    return str(_without_self(function))
