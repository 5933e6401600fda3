"""Part `waste` of `bench memory`: how much of the KV memory holds tokens, while requests of given lengths come and go.

The real scheduler on an executor that answers at once. Knows the engine's door and what a policy may see of a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import fsum
from typing import TYPE_CHECKING, Any

from corekit.api import SamplingParams
from corekit.engine.request import NewRequest

from .errors import BenchError
from .found import Found, alone
from .lengths import Lengths
from .machine import CpuMeter
from .measure import measure
from .planning import InstantExecutor
from .progress import Progress
from .stacks import NO_HOST, NO_MODEL, Stacks

if TYPE_CHECKING:
    from corekit.compose.assembly import Assembly

    from .verbs import Configure

WAITING = 32
"""Requests that wait at any time: enough that none of the room stays empty for want of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The pool, in reservations of the longest request: what a contiguous allocator of the same size would run at once."""

    reservations: int = 8
    seats: int = 256

    def settings(self, lengths: Lengths, block_size: int) -> dict[str, Any]:
        span = -(-lengths.longest // block_size)
        return {
            **NO_MODEL,
            **NO_HOST,
            "model.options": {"context_length": max(lengths.longest + 1, 2)},
            "scheduler.max_num_seqs": self.seats,
            "scheduler.max_num_batched_tokens": 2048,
            "block_allocator.num_blocks": self.reservations * span,
        }


@dataclass(slots=True, kw_only=True)
class Packed:
    """What was seen after each step that left anybody with blocks. Shares are of slots that hold a token."""

    max_waste: int = 0
    """Most slots of one sequence without a token."""
    wasted: list[float] = field(default_factory=list)
    """Mean over sequences, step by step."""
    of_allocated: list[float] = field(default_factory=list)
    of_pool: list[float] = field(default_factory=list)
    of_reserved: list[float] = field(default_factory=list)
    """Where each sequence has the longest context reserved."""
    of_known: list[float] = field(default_factory=list)
    """Where each has its own final length reserved, which nobody knows beforehand."""
    running: list[float] = field(default_factory=list)
    num_preemptions: int = 0


async def packing(configure: Configure, stacks: Stacks, lengths: Lengths, room: Room, progress: Progress, max_foreign: float) -> Found:
    async def run(number: int, label: str) -> Packed:
        return _pack(configure, stacks, lengths, room, progress)

    attempts = await measure(run, alone(max_foreign), CpuMeter)
    packed, size = attempts[0].value, stacks.block_size
    num_slots = room.reservations * -(-lengths.longest // size) * size
    blocks = {
        "memory": f"blocks of {size}",
        "utilisation": _mean(packed.of_allocated),
        "least": min(packed.of_allocated),
        "of_the_pool": _mean(packed.of_pool),
        "waste_per_sequence": _mean(packed.wasted),
        "most_waste": packed.max_waste,
        "running": _mean(packed.running),
        "preemptions": packed.num_preemptions,
    }
    reserved = dict.fromkeys(blocks) | {
        "memory": f"the longest context reserved ({lengths.longest:,})",
        "utilisation": _mean(packed.of_reserved),
        "least": min(packed.of_reserved),
        "running": float(room.reservations),
    }
    known = dict.fromkeys(blocks) | {
        "memory": "the final length reserved, if it were known",
        "utilisation": _mean(packed.of_known),
        "least": min(packed.of_known),
    }
    title = f"utilisation, {len(lengths.pairs):,} requests ({lengths.name}), {len(packed.running):,} steps, pool of {num_slots:,} slots"
    remarks = [] if packed.max_waste < size else [f"WASTE: a sequence had {packed.max_waste} slots without a token, at most {size - 1} are needed"]
    return Found(sections={title: [blocks, reserved, known]}, attempts=attempts, remarks=remarks)


def _pack(configure: Configure, stacks: Stacks, lengths: Lengths, room: Room, progress: Progress) -> Packed:
    from corekit.compose.assemble import assemble

    gate = threading.Event()
    gate.set()
    config = configure(room.settings(lengths, stacks.block_size))
    assembly = assemble(config, executor=InstantExecutor(gate), block_allocator=stacks.provider(stacks.device), frontends=())
    progress.begin("waste", len(lengths.pairs), "requests")
    try:  # its thread is never started: this one makes the steps
        return _steps(assembly, lengths, progress)
    finally:
        assembly.close()


def _steps(assembly: Assembly, lengths: Lengths, progress: Progress) -> Packed:
    engine, size, longest = assembly.engine, assembly.pool.block_size, lengths.longest
    coming, packed = _requests(lengths), Packed()
    num_slots, num_done = assembly.pool.num_tokens, 0
    while True:
        for request in coming:
            engine.submit(request)
            if engine.num_queued >= WAITING:
                break
        if engine.idle:
            break
        num_done += sum(delta.finish_reason is not None for delta in engine.step())
        progress.reach(num_done)
        residents = list(engine.scheduler.step.resident)
        if residents:
            held = [r.num_computed_tokens for r in residents]
            slots = [r.num_blocks * size for r in residents]
            tokens, allocated = sum(held), sum(slots)
            packed.max_waste = max(packed.max_waste, *(there - used for there, used in zip(slots, held, strict=True)))
            packed.wasted.append((allocated - tokens) / len(residents))
            packed.of_allocated.append(tokens / allocated)
            packed.of_pool.append(tokens / num_slots)
            packed.of_reserved.append(tokens / (len(residents) * longest))
            packed.of_known.append(tokens / sum([r.num_prompt_tokens + r.max_output_tokens for r in residents]))
            packed.running.append(len(residents))
    if num_done != len(lengths.pairs):
        raise BenchError(f"{num_done} of {len(lengths.pairs)} requests ended")
    if not packed.running:
        raise BenchError("no request was left with blocks after any step: answers of one token end in the step that begins them. Take longer ones.")
    packed.num_preemptions = engine.stats().num_preemptions
    return packed


def _requests(lengths: Lengths) -> Iterator[NewRequest]:
    """No two share a block."""
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    for number, (prompt, answer) in enumerate(lengths.pairs):
        token_ids = (number, *([0] * (prompt - 1)))
        yield NewRequest(request_id=f"bench-{number}", token_ids=token_ids, params=params, max_tokens=answer, end_ids=(), arrival_time=time.monotonic())


def _mean(values: list[float]) -> float:
    return fsum(values) / len(values)
