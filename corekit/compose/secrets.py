"""Which options must never be shown: those that a provider declares with `field(metadata={"secret": True})`.

Knows where options stand in a configuration; nothing of what they are for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from .catalog import Catalog
from .config import Config
from .problems import Path


def secret_names(options: type | None) -> frozenset[str]:
    """The secret fields of an options dataclass."""
    if options is None or not dataclasses.is_dataclass(options):
        return frozenset()
    return frozenset(field.name for field in dataclasses.fields(options) if field.metadata.get("secret"))


def secrets_of(config: Config, catalog: Catalog) -> Callable[[Path], bool]:
    """Whether the value at a path is secret. Of a part that nobody knows, every option may be."""

    def is_secret(path: Path) -> bool:
        if "options" not in path:
            return False
        at = path.index("options")
        slot, below = str(path[0]), path[at + 1 :]
        if slot == "block_allocator":
            name, below = str(below[0]), below[1:]
        else:
            table = getattr(config, slot)
            name = (table[path[1]] if at == 2 else table).use
        candidates = [c for c in catalog.candidates.get(slot, ()) if name in ("auto", c.name, c.full_name)]
        return bool(below) and (not candidates or any(below[0] in secret_names(c.provider.options) for c in candidates))

    return is_secret
