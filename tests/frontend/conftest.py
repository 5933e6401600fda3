"""One server for the tests of a module, with a client that is as new for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_live import Live, PlainClient, eventually


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Live, PlainClient]]:
    client = PlainClient()
    with Live(client) as server:
        yield server, client


@pytest.fixture
def live(shared: tuple[Live, PlainClient], client: PlainClient) -> Live:
    return shared[0]


@pytest.fixture
def client(shared: tuple[Live, PlainClient]) -> Iterator[PlainClient]:
    client = shared[1]
    yield client
    assert eventually(lambda: not client.alive)
    vars(client).update(vars(PlainClient()))
