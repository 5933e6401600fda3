"""Options of the built-in parts, with their bounds. Light: importing it imports no part."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DRAFT_TOKENS = 16
MAX_VOCAB_SIZE = 1 << 20
MAX_CONTEXT = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchAttentionOptions:
    poison: bool = False
    """The pools start as NaN, so that a read of a slot that nobody wrote shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedOptions:
    depth: int = 2
    """Steps in flight, 1..16."""

    def __post_init__(self) -> None:
        _integer("depth", self.depth, 1, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class FingerprintOptions:
    vocab_size: int = 320
    """8..1048576."""
    context_length: int = 4096
    """1..65536."""
    max_draft_tokens: int = 0
    """0..16 guesses a step, a third of them wrong."""
    seed: int = 0
    """0..65535; another seed, another model."""

    def __post_init__(self) -> None:
        _integer("vocab_size", self.vocab_size, 8, MAX_VOCAB_SIZE)
        _integer("context_length", self.context_length, 1, MAX_CONTEXT)
        _integer("max_draft_tokens", self.max_draft_tokens, 0, MAX_DRAFT_TOKENS)
        _integer("seed", self.seed, 0, (1 << 16) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    """What is answered: `scripts` (ids) if there are any, else `texts` as UTF-8 bytes. The first id of the prompt chooses: id modulo their number."""

    texts: tuple[str, ...] = ("This answer was written down beforehand.",)
    """Answers, as UTF-8 bytes. The first id of the prompt chooses: id modulo their number."""
    scripts: tuple[tuple[int, ...], ...] = ()
    """Answers as ids; they rule over `texts`."""
    random: bool = False
    """Instead of scripts: logits that are a pure function of `seed` and all tokens so far."""
    seed: int = 0
    """0..65535."""
    vocab_size: int = 257
    """2..1048576."""
    eos_token_id: int = 256
    """Below `vocab_size`."""
    context_length: int = 4096
    """1..65536."""
    max_draft_tokens: int = 0
    """0..16 guesses a step, all of them right at temperature 0."""
    raise_at: int = -1
    """The forward pass raises when a row computes this position; -1: never."""
    raise_on: int = -1
    """The forward pass raises when a row computes this id; -1: never."""
    step_seconds: float = 0.0
    """Every forward pass takes so long, 0..60."""

    def __post_init__(self) -> None:
        _integer("vocab_size", self.vocab_size, 2, MAX_VOCAB_SIZE)
        _integer("eos_token_id", self.eos_token_id, 0, self.vocab_size - 1)
        _integer("context_length", self.context_length, 1, MAX_CONTEXT)
        _integer("max_draft_tokens", self.max_draft_tokens, 0, MAX_DRAFT_TOKENS)
        _integer("seed", self.seed, 0, (1 << 16) - 1)
        _integer("raise_at", self.raise_at, -1, MAX_CONTEXT)
        _integer("raise_on", self.raise_on, -1, self.vocab_size - 1)
        if not 0 <= self.step_seconds <= 60:
            raise ValueError(f"step_seconds must be a number from 0 to 60, got {self.step_seconds!r}")
        if not self.answers:
            raise ValueError("texts must not be empty: the model needs something to answer")
        for answer in self.answers:
            if wrong := [id for id in answer if not 0 <= id < self.vocab_size]:
                raise ValueError(f"scripts must hold ids below vocab_size ({self.vocab_size}), got {wrong[:4]}")

    @property
    def answers(self) -> tuple[tuple[int, ...], ...]:
        return self.scripts or tuple(tuple(text.encode()) for text in self.texts)


def _integer(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {value!r}")
