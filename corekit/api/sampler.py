"""Slot `sampler` (stable, one): logits to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Biases:
    """What is added to single logits, one entry each, in any order; a sample names an id once."""

    sample: Tensor
    """[entries] int64: which sample of the batch."""
    token_id: Tensor
    """[entries] int64."""
    value: Tensor
    """[entries] float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Penalties:
    """Repetition, presence and frequency penalties, and the history that they look at.

    For every entry, with x the logit of its id: x / repetition if x > 0, else x * repetition (Keskar et al. 2019); then
    minus presence if num_output > 0, minus frequency * num_output.
    """

    repetition: Tensor
    """[samples] float32; 1 is none."""
    presence: Tensor
    """[samples] float32; 0 is none."""
    frequency: Tensor
    """[samples] float32; 0 is none."""
    sample: Tensor
    """[entries] int64: which sample of the batch."""
    token_id: Tensor
    """[entries] int64, in any order: an id of its prompt or output; a sample names an id once."""
    num_output: Tensor
    """[entries] int64: how often it stands in the output; 0 for one of the prompt alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingBatch:
    """The draws of one step; every tensor has one entry per sample, on the device of the logits.

    Order: biases, penalties, what is allowed and banned, temperature, then the filters top_k, min_p and top_p. Each filter
    looks at what those before it left. Ids outside the vocabulary, in whatever is asked here, mean nothing.
    """

    logits_row: Tensor
    """int64: the row of logits that a sample draws from; n samples of one prompt share a row."""
    temperature: Tensor
    """float32; 0 is argmax."""
    top_k: Tensor
    """int64; 0 or -1 keeps all."""
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    """int64."""
    position: Tensor
    """int64: the position that the drawn token will take."""
    index: Tensor
    """int64: which sample of its request."""
    banned: Sequence[tuple[int, tuple[int, ...]]] = ()
    """(sample, ids that it may not draw), for samples that have any; a sample may stand here several times."""
    allowed: Sequence[tuple[int, tuple[int, ...]]] = ()
    """(sample, the only ids that it may draw), for samples that have such a list."""
    biases: Biases | None = None
    """None: no sample has any."""
    penalties: Penalties | None = None
    """None: no sample has any."""
    all_greedy: bool = False
    """Every temperature is 0: a sampler may skip everything but argmax."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What was drawn, one id per sample of the batch, on the device of the logits."""

    token_ids: Tensor
    """[samples] int64."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Natural log-probabilities under the unmodified logits."""

    chosen: Tensor
    """[samples] float32."""
    top_ids: Tensor
    """[samples, k] int64, likeliest first."""
    top: Tensor
    """[samples, k] float32."""


class Sampler(Protocol):
    """A sample depends on its own logits row, parameters, seed, position and index only.

    Draws are pure functions of (seed, position, index): no generator with a state, no neighbour. Never raises for values. A
    sample that may draw nothing at all may be given any id: the core sees it and ends its request.
    """

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Sampled:
        """logits [rows, vocab_size], possibly a view. Neither they nor the batch are changed."""
        ...


@runtime_checkable
class SupportsLogprobs(Protocol):
    """Optional: without it, requests for logprobs are refused at the door."""

    def logprobs(self, logits: Tensor, logits_row: Tensor, token_ids: Tensor, num_top: int) -> Logprobs:
        """For samples that drew token_ids [samples] from rows logits_row [samples] of logits [rows, vocab_size]."""
        ...
