"""A recording as a workload: prompts of its lengths, made of random ids or words, that share what the recorded ones shared. Knows no server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from .errors import BenchUsage
from .recording import Recorded, Recording, read_recording
from .synthetic import WORDS
from .workload import Request

MAX_PROMPT_TOKENS = 100_000_000
"""Of one repetition, which is made before its first request is sent: they take eight bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reenacted:
    """Every repetition has the recorded lengths, times and shared blocks, and tokens of its own: nothing of it is in a prefix cache before."""

    recording: Recording
    seed: int
    vocab_size: int | None
    """None: prompts are words, about a token each."""
    num_clipped: int = 0
    longest: int | None = None

    @property
    def name(self) -> str:
        return self.recording.name

    @property
    def origin(self) -> str:
        return f"recorded, {'words' if self.vocab_size is None else f'ids below {self.vocab_size}'}, seed {self.seed}"

    @property
    def num_requests(self) -> int:
        return len(self.recording.requests)

    @property
    def remarks(self) -> tuple[str, ...]:
        if not self.num_clipped:
            return ()
        return (f"{self.num_clipped} of {self.num_requests} recorded requests were clipped to {self.longest} tokens",)

    def repetition(self, number: int) -> tuple[Request, ...]:
        return tuple(self._requests(number))

    def _requests(self, number: int) -> Iterator[Request]:
        tokens: Sequence[Any] = WORDS if self.vocab_size is None else range(self.vocab_size)
        tokens = list(tokens)  # drawn from a list, equal ids are one object
        blocks: dict[int, list[Any]] = {}

        def piece(kind: str, of: int, count: int) -> list[Any]:
            return Random(f"{self.seed} {number} {kind} {of}").choices(tokens, k=count)

        def prompt(index: int, one: Recorded) -> list[Any]:
            made: list[Any] = []
            for block in one.block_ids:
                if len(made) >= one.num_prompt_tokens:
                    break
                if block not in blocks:
                    blocks[block] = piece("block", block, self.recording.block_tokens)
                made += blocks[block]
            del made[one.num_prompt_tokens :]
            return made + piece("request", index, one.num_prompt_tokens - len(made))

        for index, one in enumerate(self.recording.requests):
            made = prompt(index, one)
            if self.vocab_size is None:
                yield Request(token_ids=None, text=" ".join(made), num_output_tokens=one.num_output_tokens)
            else:
                yield Request(token_ids=tuple(made), text=None, num_output_tokens=one.num_output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRecording:
    """Which recording, how much of it, how fast and how long."""

    file: Path
    max_requests: int = 1000
    speedup: float | None = None
    rate: float | None = None
    """Requests per second that its times are scaled to; at most one of the two is set."""
    shorten: int = 1
    longest: int | None = None
    block_tokens: int = 512
    seed: int
    prompts: Literal["ids", "text"] | None = None

    def workload(self, vocab_size: int | None) -> Reenacted:
        if self.prompts == "ids" and vocab_size is None:
            raise BenchUsage("--prompts ids: ids are drawn from a vocabulary, and this server's is not known. Add --vocab-size, or send text.")
        recording, num_clipped = read_recording(self.file, self.max_requests, self.block_tokens).shorter(self.shorten), 0
        if self.longest is not None:
            recording, num_clipped = recording.clipped(self.longest)
        total = sum(one.num_prompt_tokens for one in recording.requests)
        if total > MAX_PROMPT_TOKENS:
            raise BenchUsage(
                f"--arrivals {self.file}: its prompts have {total:,} tokens, at most {MAX_PROMPT_TOKENS:,} are made. Lower --max-requests, or raise --shorten."
            )
        if self.speedup is not None:
            recording = recording.faster(self.speedup)
        if self.rate is not None:
            recording = recording.at_rate(self.rate)
        return Reenacted(
            recording=recording,
            seed=self.seed,
            vocab_size=None if self.prompts == "text" else vocab_size,
            num_clipped=num_clipped,
            longest=self.longest,
        )
