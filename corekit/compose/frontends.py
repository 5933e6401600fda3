"""Runs frontends side by side. Knows nothing of engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from corekit.api import EngineClient, Frontend


async def run_frontends(frontends: Sequence[Frontend], client: EngineClient) -> None:
    """Every frontend until cancelled, or until one ends: then the others end too. Raises what one of them raised."""
    running = [asyncio.ensure_future(frontend.serve(client)) for frontend in frontends]
    try:
        await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    for task in running:
        if not task.cancelled():
            task.result()
