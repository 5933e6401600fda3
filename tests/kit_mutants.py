"""Runs a kit's laws by hand, so that planted faults can be counted. A law that no mutant breaks proves nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.api import Provider
from corekit.testing import Kit


def subject(kit: type[Kit], provider: Provider[Any] | str, options: Mapping[str, Any] | None = None, **members: Any) -> Kit:
    """An instance of the kit for one provider, as a test file would declare it. members: what else the declaration overrides."""
    made = type(f"On{kit.__name__}", (kit,), {"provider": provider, "options": options or {}, **members})()
    assert isinstance(made, Kit)
    return made


def laws(kit: Kit) -> list[str]:
    return [name for name in dir(kit) if name.startswith("test_")]


def breaks(kit: Kit, law: str) -> str:
    """The message with which this law fails, or "" when it holds."""
    try:
        getattr(kit, law)()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
