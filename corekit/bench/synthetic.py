"""The built-in workloads: the shapes of W1, W2 and W3 filled with random ids or with random words. Deterministic; knows no tokenizer.

W1: one request, 128 tokens in, 128 out. W2: 32 requests, 32..512 in, 16..128 out. W3: 32 requests that share 1,024 tokens and add 32
of their own, 32 out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from .errors import BenchUsage
from .workload import Request, Workload

NUM_REPETITIONS = 5
SHAPE_SEED = 20261130
"""Of the lengths of W2; they never change, so that results stay comparable. The seed of a workload moves its prompts only."""

NAMES = ("W1", "W2", "W3")

_TEXT = (
    "the of and to in is that it was for on are as with they at be this have from or one had by word but not what all were we when your can said there use an"
    " each which she do how their if will up other about out many then them these so some her would make like him into time has look two more write go see"
    " number no way could people my than first water been call who oil its now find long down day did get come made may part"
)
WORDS: Sequence[str] = tuple(_TEXT.split())

Piece = Callable[[int], tuple[int, ...]]


def synthetic(name: str, *, seed: int, vocab_size: int | None) -> Workload:
    """With a vocabulary prompts are ids of it, without one they are text, one word per token of the shape."""
    if name not in NAMES:
        raise BenchUsage(f"--name {name}: no such built-in workload. Built in are {', '.join(NAMES)}; others come from a file given with --workload.")
    random = Random(f"{name} {seed}")
    top = len(WORDS) if vocab_size is None else vocab_size

    def piece(length: int) -> tuple[int, ...]:
        return tuple(random.randrange(top) for _ in range(length))

    def request(tokens: tuple[int, ...], out: int) -> Request:
        if vocab_size is None:
            return Request(token_ids=None, text=" ".join(WORDS[i] for i in tokens), num_output_tokens=out)
        return Request(token_ids=tokens, text=None, num_output_tokens=out)

    repetitions = tuple(tuple(request(tokens, out) for tokens, out in _prompts(name, piece)) for _ in range(NUM_REPETITIONS))
    kind = "words" if vocab_size is None else f"ids below {vocab_size}"
    return Workload(name=name, origin=f"built in, {kind}, seed {seed}", repetitions=repetitions)


def _prompts(name: str, piece: Piece) -> list[tuple[tuple[int, ...], int]]:
    if name == "W1":
        return [(piece(128), 128)]
    if name == "W2":
        lengths = Random(SHAPE_SEED)
        return [(piece(num_prompt), out) for num_prompt, out in [(lengths.randint(32, 512), lengths.randint(16, 128)) for _ in range(32)]]
    prefix = piece(1024)
    return [(prefix + piece(32), 32) for _ in range(32)]
