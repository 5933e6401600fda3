"""What a restricted sample must answer, naively: everything is counted anew for every token, from its parameters and tokens alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from corekit.api import Biases, Penalties, SamplingBatch, SamplingParams
from corekit.builtin.fingerprint import Fingerprint, FingerprintOptions, SoloCode
from corekit.builtin.torch_sampler import TorchSampler

VOCAB = 24
"""So few ids that an answer repeats them."""


def answer(
    prompt: Sequence[int],
    count: int,
    params: SamplingParams,
    *,
    seed: int = 0,
    sample: int = 0,
    end_ids: tuple[int, ...] = (),
    bad_words: tuple[tuple[int, ...], ...] = (),
) -> list[int]:
    """`count` tokens; an end id does not end it here."""
    model, code, output = Fingerprint(FingerprintOptions(vocab_size=VOCAB)), SoloCode(), list[int]()
    while len(output) < count:
        logits = model.logits(torch.tensor([[code.after([*prompt, *output])]], dtype=torch.float64))
        banned = {*params.banned_token_ids, *(end_ids if len(output) < params.min_tokens else ())}
        banned |= {word[-1] for word in bad_words if [*word[:-1]] == output[len(output) - len(word) + 1 :]}
        batch = batch_of_one(params, prompt, output, tuple(banned), seed, sample)
        output.append(int(TorchSampler().sample(logits, batch).token_ids[0]))
        if not params.temperature:
            assert output[-1] == _likeliest(logits[0].tolist(), params, prompt, output[:-1], banned)
    return output


def _likeliest(logits: list[float], params: SamplingParams, prompt: Sequence[int], output: list[int], banned: set[int]) -> int:
    single = {name: float(np.float32(getattr(params, f"{name}_penalty"))) for name in ("repetition", "presence", "frequency")}
    for id, bias in dict(params.logit_bias).items():
        logits[id] += bias
    for id in {*prompt, *output}:
        logits[id] = logits[id] / single["repetition"] if logits[id] > 0 else logits[id] * single["repetition"]
        logits[id] = logits[id] - (id in output) * single["presence"] - output.count(id) * single["frequency"]
    permitted = set(range(VOCAB) if params.allowed_token_ids is None else params.allowed_token_ids) - banned
    return max(sorted(permitted), key=lambda id: logits[id])


def batch_of_one(params: SamplingParams, prompt: Sequence[int], output: Sequence[int], banned: tuple[int, ...], seed: int, sample: int) -> SamplingBatch:
    biases, counts = dict(params.logit_bias), Counter(output)
    history = sorted({*prompt, *output})

    def ints(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64)

    def floats(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32)

    return SamplingBatch(
        logits_row=ints([0]),
        temperature=floats(params.temperature),
        top_k=ints([params.top_k]),
        top_p=floats(params.top_p),
        min_p=floats(params.min_p),
        seed=ints([seed]),
        position=ints([len(prompt) + len(output)]),
        index=ints([sample]),
        banned=((0, banned),),
        allowed=() if params.allowed_token_ids is None else ((0, params.allowed_token_ids),),
        biases=Biases(sample=ints([0] * len(biases)), token_id=ints(list(biases)), value=floats(*biases.values())),
        penalties=Penalties(
            repetition=floats(params.repetition_penalty),
            presence=floats(params.presence_penalty),
            frequency=floats(params.frequency_penalty),
            sample=ints([0] * len(history)),
            token_id=ints(history),
            num_output=ints([counts[id] for id in history]),
        ),
    )
