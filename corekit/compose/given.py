"""Configuration from what a Python caller gives: keys by their own name or by table, over a file or tables. Knows no default."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from .config import Config, load
from .surroundings import environment
from .tables import Tables


def configured(source: str | None, config: Config | Mapping[str, Any] | str | PathLike[str] | None, options: Mapping[str, Any]) -> Config:
    """Options over config over environment over file over defaults. Unknown names are reported by the configuration itself."""
    given = _named(source, options)
    if isinstance(config, Config):  # checked with its own environment
        return load(given=_over(given, config.model_dump(exclude_unset=True, by_alias=True))) if given else config
    if isinstance(config, Mapping):
        return load(environ=environment(), given=_over(given, _over(config, {})))
    return load(None if config is None else Path(config), environ=environment(), given=given)


def _named(source: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Tables from names: `a.b=c` is b of table a; a slot's name with a text chooses its provider."""
    given: dict[str, Any] = {}
    for name, value in options.items():
        if isinstance(value, str) and name in Tables.model_fields:
            value = {"source" if name == "model" else "use": value}
        for part in reversed(name.split(".")):
            value = {part: value}
        given = _over(value, given)
    return given if source is None else _over({"model": {"source": source}}, given)


def _over(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """Tables are merged key by key; everything else replaces what was there."""
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = _over(value, below if isinstance(below, Mapping) else {}) if isinstance(value, Mapping) else value
    return merged
