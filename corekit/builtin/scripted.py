"""A model without weights that answers what was written down: for tests of text, HTTP and faults. Knows no blocks or rows.

What comes next is a pure function of the tokens so far, so chunks, neighbours, preemption and prefix hits change nothing. The
model looks for the longest beginning of the script that the tokens end with, and gives the id after it; after the whole
script, EOS; after that, the script again. A prompt whose end is the beginning of the script ("xo" before "ok") has therefore
begun the answer already: let a text not begin with a character that a prompt ends with.

How it remembers: every computed position caches a number (its ticket) through the attention backend and reads back the ticket
of the position before; the model keeps the state that belongs to each ticket, eight bytes per computed token.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence

import torch
from torch import Tensor

from corekit.api import Attend, LayerSpec, ModelInputs, ModelSpec, Shard, WeightSource

from .options import ScriptedOptions
from .torch_sampler import uniform

SHARPNESS = 60.0
HEAD_DIM = 3
CERTAIN = 100.0
"""Logit of the next id, far above the rest at any temperature up to 2."""
AGAIN = 50.0
"""Logit of the script's beginning where EOS is next: what is drawn while EOS is not allowed."""
SPREAD = 8.0
"""Random logits lie in 0..8."""


class Scripted:
    """The state of a token depends on its row's tokens up to and including it, whatever is computed beside it."""

    def __init__(self, options: ScriptedOptions | None = None) -> None:
        self._options = options = options or ScriptedOptions()
        self._spec = ModelSpec(
            architecture="scripted",
            layers=(LayerSpec(num_heads=1, num_kv_heads=1, key_dim=HEAD_DIM, value_dim=HEAD_DIM, scale=1.0),),
            vocab_size=options.vocab_size,
            context_length=options.context_length,
            hidden_size=1,
            eos_token_ids=(options.eos_token_id,),
            dtype="float64",
        )
        self._chain: _Hash | _Scripts = _Hash(options) if options.random else _Scripts(options)
        self._states = array("q")
        """ticket -> state."""

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def max_draft_tokens(self) -> int:
        return self._options.max_draft_tokens

    def load(self, weights: WeightSource, shard: Shard) -> None:
        """There is nothing to read."""

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        options, p = self._options, inputs.positions
        if options.step_seconds:
            time.sleep(options.step_seconds)
        ids, positions = inputs.token_ids.tolist(), p.tolist()
        if options.raise_at in positions or options.raise_on in ids:
            raise ValueError(f"scripted to fail at position {options.raise_at} or on id {options.raise_on}")
        first = len(self._states)
        tickets = torch.arange(first, first + len(ids), dtype=torch.float64, device=p.device)
        before = _read_before(attend, p, tickets)
        states, chain = self._states, self._chain
        for id, position, ticket in zip(ids, positions, before.nan_to_num(nan=0.0).tolist(), strict=True):
            states.append(chain.follow(states[round(ticket)], id) if position else chain.start(id))
        return tickets.masked_fill(before.isnan(), float("nan"))[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        states = [self._states[round(ticket)] for ticket in hidden[:, 0].nan_to_num(nan=0.0).tolist()]
        return self._chain.logits(states, hidden.device).masked_fill_(hidden.isnan(), float("nan"))

    def draft(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        state = self._chain.start(token_ids[0])
        for id in token_ids[1:]:
            state = self._chain.follow(state, id)
        guesses: list[int] = []
        while len(guesses) < count:
            guesses.append(int(self._chain.logits([state], torch.device("cpu")).argmax()))
            state = self._chain.follow(state, guesses[-1])
        return guesses


def _read_before(attend: Attend, p: Tensor, tickets: Tensor) -> Tensor:
    """Cache the tickets; the ticket of each token's predecessor (its own at position 0). Keys (p*p, p, 1): the query peaks at its target."""
    position, target = p.to(torch.float64), (p - 1).clamp(min=0).to(torch.float64)
    one = torch.ones_like(position)
    key = torch.stack([position * position, position, one], -1)[:, None]
    query = torch.stack([-SHARPNESS * one, 2 * SHARPNESS * target, -SHARPNESS * target * target], -1)[:, None]
    return attend(0, query, key, tickets[:, None, None].expand(-1, 1, HEAD_DIM).contiguous())[:, 0, 0]


class _Scripts:
    """A state is (script, how many of its ids the tokens end with), as one number."""

    def __init__(self, options: ScriptedOptions) -> None:
        self._answers = options.answers
        self._eos, self._vocab_size = options.eos_token_id, options.vocab_size
        self._span = 1 + max(len(answer) for answer in self._answers)
        self._shorter = tuple(_borders(answer) for answer in self._answers)

    def start(self, id: int) -> int:
        return self.follow(id % len(self._answers) * self._span, id)

    def follow(self, state: int, id: int) -> int:
        which, length = divmod(state, self._span)
        answer, shorter = self._answers[which], self._shorter[which]
        while length and (length == len(answer) or answer[length] != id):
            length = shorter[length]
        if answer and answer[length] == id:
            length += 1
        return which * self._span + length

    def logits(self, states: Sequence[int], device: torch.device) -> Tensor:
        logits = torch.zeros(len(states), self._vocab_size, device=device)
        for row, state in enumerate(states):
            which, length = divmod(state, self._span)
            answer = self._answers[which]
            if length == len(answer):
                logits[row, answer[0] if answer else 0] = AGAIN
            logits[row, answer[length] if length < len(answer) else self._eos] = CERTAIN
        return logits


def _borders(answer: Sequence[int]) -> tuple[int, ...]:
    """[n]: length of the longest proper beginning of answer[:n] that answer[:n] also ends with (Knuth, Morris and Pratt 1977)."""
    borders = [0, 0]
    for n in range(1, len(answer)):
        length = borders[n]
        while length and answer[length] != answer[n]:
            length = borders[length]
        borders.append(length + 1 if answer[length] == answer[n] else 0)
    return tuple(borders)


class _Hash:
    """A state is a hash of all tokens so far."""

    def __init__(self, options: ScriptedOptions) -> None:
        self._seed, self._vocab_size = options.seed, options.vocab_size

    def start(self, id: int) -> int:
        return self.follow(self._seed, id)

    def follow(self, state: int, id: int) -> int:
        return (state * 6364136223846793005 + id * 1442695040888963407 + 1) & ((1 << 63) - 1)

    def logits(self, states: Sequence[int], device: torch.device) -> Tensor:
        ids = torch.arange(self._vocab_size, device=device)
        return (SPREAD * uniform(torch.tensor(states, device=device)[:, None], ids, torch.zeros_like(ids))).float()
