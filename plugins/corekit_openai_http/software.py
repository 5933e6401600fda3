"""Which corekit this is."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def corekit_version() -> str:
    try:
        return version("corekit")
    except PackageNotFoundError:
        return "unknown"
