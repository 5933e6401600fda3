"""The requests that are being answered, by the id that their clients know. Knows no engine: an order to end is heard by whoever answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class LiveRequests:
    """Several requests may have one id. Used from one event loop."""

    def __init__(self) -> None:
        self._orders: dict[str, list[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._orders.values()))

    @contextmanager
    def one_more(self, request_id: str) -> Iterator[asyncio.Future[None]]:
        """A request, for as long as the context is open. What it yields is done once the request was told to end."""
        order = asyncio.get_running_loop().create_future()
        self._orders.setdefault(request_id, []).append(order)
        try:
            yield order
        finally:
            self._orders[request_id].remove(order)
            if not self._orders[request_id]:
                del self._orders[request_id]

    def end(self, request_id: str | None = None) -> int:
        """Tells all requests of this id to end, or without one all there are; how many."""
        orders = self._orders.get(request_id, []) if request_id is not None else [order for orders in self._orders.values() for order in orders]
        waiting = [order for order in orders if not order.done()]
        for order in waiting:
            order.set_result(None)
        return len(waiting)
