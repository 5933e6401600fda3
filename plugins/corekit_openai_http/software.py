"""Which corekit this is, with which model."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from corekit.api import ModelFacts


@cache
def corekit_version() -> str:
    try:
        return version("corekit")
    except PackageNotFoundError:
        return "unknown"


def fingerprint(model: ModelFacts) -> str:
    """Changes when an answer of the same seed may: with the version, and with the model."""
    return "fp_" + hashlib.sha256("\n".join((corekit_version(), model.name, model.source)).encode()).hexdigest()[:12]
