"""The fingerprint model as the law uses it, and what a request must answer alone. Answers are remembered: scenarios repeat prompts."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import torch

from corekit.api import SamplingParams, TokenLogprob
from corekit.builtin.fingerprint import Fingerprint, FingerprintOptions, SoloCode, draw_one, solo
from corekit.builtin.torch_sampler import TorchSampler
from corekit.engine.request import NewRequest

VOCAB = 64
SAMPLER = TorchSampler()
PLAIN = SamplingParams()


def fingerprint(max_draft_tokens: int = 0) -> Fingerprint:
    return Fingerprint(FingerprintOptions(vocab_size=VOCAB, max_draft_tokens=max_draft_tokens))


class ThirdBanned:
    """A constraint that depends on every accepted token: of three ids in a row, one may not come."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    @staticmethod
    def allows(id: int, accepted: list[int]) -> bool:
        return (id + 7 * sum(accepted) + len(accepted)) % 3 != 0

    def accept(self, token_ids) -> None:
        self.accepted += token_ids

    def rollback(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def fill(self, mask_row: memoryview) -> None:
        for id in range(VOCAB):
            if not self.allows(id, self.accepted):
                mask_row[id // 32] &= ~(1 << id % 32)


def solo_answer(new: NewRequest, sample: int) -> tuple[int, ...]:
    which = sample if new.params.temperature else 0
    return _answer(new.token_ids, new.max_tokens, new.params, new.seed, which, new.end_ids, new.bad_words, bool(new.constraints))


def solo_prompt_logprobs(new: NewRequest) -> list[TokenLogprob | None]:
    """Of every position but the first, from one row of logits each."""
    code, model, found = SoloCode(), fingerprint(), [None]
    for at in range(1, len(new.token_ids)):
        row = _logits(model, code.after(new.token_ids[:at]))
        order = sorted(range(VOCAB), key=lambda id: (-row[id], id))[: new.params.prompt_logprobs]
        total = math.log(math.fsum(math.exp(x) for x in row))
        found.append(TokenLogprob(new.token_ids[at], row[new.token_ids[at]] - total, tuple((id, row[id] - total) for id in order)))
    return found


@lru_cache(50_000)
def _answer(prompt, max_tokens, params, seed, sample, end_ids, bad_words, constrained) -> tuple[int, ...]:
    plain = replace(params, **{name: getattr(PLAIN, name) for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias")})
    if plain == params and not (bad_words or constrained or params.banned_token_ids or params.allowed_token_ids):
        options = FingerprintOptions(vocab_size=VOCAB)
        return solo(prompt, max_tokens=max_tokens, params=params, seed=seed, sample=sample, end_ids=end_ids, options=options, sampler=SAMPLER)
    known, output, code, model = list(prompt), [], SoloCode(), fingerprint()
    while True:
        row = _shaped(_logits(model, code.after(known)), list(prompt), output, params)
        for id in range(VOCAB):
            if not _may_come(id, output, params, end_ids, bad_words) or (constrained and not ThirdBanned.allows(id, output)):
                row[id] = -math.inf
        if params.temperature:
            token = draw_one(SAMPLER, torch.tensor([row], dtype=torch.float64), params, seed=seed, sample=sample, position=len(known))
        else:
            token = row.index(max(row))
        known.append(token)
        output.append(token)
        if token in end_ids or len(output) == max_tokens:
            return tuple(output)


def _logits(model: Fingerprint, code: int) -> list[float]:
    return model.logits(torch.tensor([[code]], dtype=torch.float64))[0].tolist()


def _shaped(row: list[float], prompt: list[int], output: list[int], params: SamplingParams) -> list[float]:
    """Bias and penalties, as their formulas are written."""
    for id, bias in params.logit_bias:
        row[id] += bias
    for id in {*prompt, *output}:
        if id < VOCAB:
            row[id] = row[id] / params.repetition_penalty if row[id] > 0 else row[id] * params.repetition_penalty
            row[id] -= params.presence_penalty * (id in output) + params.frequency_penalty * output.count(id)
    return row


def _may_come(id: int, output: list[int], params: SamplingParams, end_ids, bad_words) -> bool:
    if params.allowed_token_ids is not None and id not in params.allowed_token_ids:
        return False
    if id in params.banned_token_ids or (len(output) < params.min_tokens and id in end_ids):
        return False
    return not any((*output, id)[-len(word) :] == word for word in bad_words)
