"""What a whole engine answers with given memory parts, on the model that reads every cached position back.

Owned by the kits of slots `block_allocator` and `attention_backend`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any

from corekit.api import Prompt, SamplingParams
from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly
from corekit.compose.catalog import Candidate, build_catalog
from corekit.compose.discovery import discover

from .block_calls import BLOCK_SIZE
from .block_stack import found

PREFIX = tuple(range(40, 60))
SECONDS = 60.0
"""Until a request that gets no answer is a fault."""

Answer = Mapping[int, tuple[int, ...]]


def requests() -> list[tuple[Prompt, SamplingParams]]:
    """Prompts with shared beginnings and with equal blocks at different places, some with several samples: together far more than the pool of the law."""
    asked = []
    for number in range(8):
        ids = (*PREFIX[: (number * 7) % 21], *range(number, number + 1 + number % 3)) if number % 4 else (5,) * (9 + number)
        params = SamplingParams(max_tokens=6 + number % 5, n=1 + (number % 4 == 3), temperature=float(number % 2), seed=number, ignore_eos=True)
        asked.append((Prompt(token_ids=ids), params))
    return asked


@cache
def alone() -> Sequence[Answer]:
    """What is right: one request after the other on parts of corekit's own, with room for all. It never changes, so it is asked once."""
    return answers([found("free-list")], {}, num_blocks=64, together=False)


def answers(
    stack: Sequence[Candidate],
    options: Mapping[str, Any],
    *,
    num_blocks: int,
    together: bool,
    parks: bool = False,
    attention: tuple[Candidate, Mapping[str, Any]] | None = None,
) -> Sequence[Answer]:
    """The tokens of every request by sample. The stack is given top to bottom, options are those of the top.

    together: all requests at once, else one after the other. parks: who gives way is parked on the host. attention: a backend
    and its options; None: torch, on poisoned pools. The engine's audit must be clean at the end.
    """
    backend = {"use": "torch", "options": {"poison": True}} if attention is None else {"use": attention[0].full_name, "options": dict(attention[1])}
    names = [candidate.full_name for candidate in stack]
    config = {
        "model": {"source": "none", "use": "fingerprint"},
        "tokenizer": {"use": "bytes"},
        "engine": {"device": "cpu", "threads": 1},
        "executor": {"use": "delayed"},
        "attention_backend": backend,
        "scheduler": {"max_num_seqs": 8, "max_num_batched_tokens": 32, "watermark": 0.0, "preemption": "swap" if parks else "recompute"},
        "block_allocator": {"stack": names, "block_size": BLOCK_SIZE, "num_blocks": num_blocks, "options": {names[0]: dict(options)} if options else {}},
    }
    given = [*stack, attention[0]] if attention else stack
    catalog = build_catalog(discover(), [candidate for candidate in given if candidate.plugin.entry == "kit"])
    with assemble(config, catalog=catalog, frontends=(), environ={}, progress=False) as assembly:
        told = asyncio.run(asyncio.wait_for(_all(assembly, together), SECONDS))
    assert not (problems := list(assembly.engine.audit())), f"the engine's audit, once it was idle: {problems}"
    return told


async def _all(assembly: Assembly, together: bool) -> list[Answer]:
    if not together:
        return [await _one(assembly, prompt, params) for prompt, params in requests()]
    return list(await asyncio.gather(*(_one(assembly, prompt, params) for prompt, params in requests())))


async def _one(assembly: Assembly, prompt: Prompt, params: SamplingParams) -> Answer:
    tokens: dict[int, tuple[int, ...]] = {}
    async with aclosing(assembly.client.generate(prompt, params)) as news:
        async for output in news:
            for piece in output.outputs:
                assert piece.finish_reason in (None, "length"), f"a request ended with {piece.finish_reason}"
                tokens[piece.index] = tokens.get(piece.index, ()) + piece.token_ids
    return tokens
