"""The fingerprint model as the law uses it, and what a request must answer alone. Answers are remembered: scenarios repeat prompts."""

from __future__ import annotations

from functools import lru_cache

from corekit.builtin.fingerprint import Fingerprint, FingerprintOptions, solo
from corekit.builtin.torch_sampler import TorchSampler
from corekit.engine.request import NewRequest

VOCAB = 64
SAMPLER = TorchSampler()


def fingerprint(max_draft_tokens: int = 0) -> Fingerprint:
    return Fingerprint(FingerprintOptions(vocab_size=VOCAB, max_draft_tokens=max_draft_tokens))


@lru_cache(50_000)
def _answer(prompt, max_tokens, params, seed, sample, end_ids) -> tuple[int, ...]:
    return solo(
        prompt,
        max_tokens=max_tokens,
        params=params,
        seed=seed,
        sample=sample,
        end_ids=end_ids,
        options=FingerprintOptions(vocab_size=VOCAB),
        sampler=SAMPLER,
    )


def solo_answer(new: NewRequest, sample: int) -> tuple[int, ...]:
    return _answer(new.token_ids, new.max_tokens, new.params, new.seed, sample if new.params.temperature else 0, new.end_ids)
