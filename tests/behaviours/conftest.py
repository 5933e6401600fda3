"""What every module of this folder stands on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corekit.engine.collector import Collector


@pytest.fixture(scope="module", autouse=True)
def one_owner_of_the_collector() -> Iterator[None]:
    """The engines of a module find Python's collector owned; each would walk every object of the process when it starts."""
    collector = Collector()
    collector.start()
    yield
    collector.close()
