"""LLM on long lists: what a call keeps alive beyond prompts and answers does not grow with them. And how answers are gathered."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from dataclasses import replace

import pytest

from corekit.api import CompletionOutput, Prompt, RequestOutput, SamplingParams, TokenLogprob
from corekit.llm import LLM
from corekit.llm.whole import whole

LONG = 96
"""Ids of one prompt: what a call kept of one more would be at least as many words."""


def prompts_of(count: int) -> list:
    """Text, ids and Prompts in turns; nothing in them is shared."""
    forms = (lambda ids: bytes(ids).decode(), list, lambda ids: Prompt(token_ids=tuple(ids)))
    return [forms[i % 3]([65 + i % 26, *(32 + (i * at) % 90 for at in range(1, LONG))]) for i in range(count)]


def transient(llm: LLM, count: int) -> int:
    """Bytes at the worst moment of a call that were there for its time only. Garbage is collected all the time: it is nobody's."""
    streams, prompts = llm.assembly.client._streams, prompts_of(count)
    add, seen = streams.add, iter(range(count))

    def add_and_collect(stream: object) -> None:
        add(stream)
        if not next(seen) % 16:
            gc.collect()

    streams.add = add_and_collect
    gc.collect()
    gc.freeze()  # what is there already need not be looked at again and again
    tracemalloc.start()
    try:
        outputs = llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=2), progress=False)
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.unfreeze()
        streams.add = add
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.prompt == (prompt if isinstance(prompt, str) else None)
    return peak - after


@pytest.mark.parametrize(("few", "many"), [(80, 200), pytest.param(300, 1000, marks=pytest.mark.slow)])
def test_memory_stays_flat_however_long_the_list(few, many):
    given = {"max_model_len": 128, "max_num_seqs": 8, "num_blocks": 512, "stack": ["free-list"], "threads": 1}
    with LLM("none", config={"model": {"use": "fingerprint"}, "tokenizer": {"use": "bytes"}}, **given) as llm:
        transient(llm, 40)  # what is made once
        small, large = transient(llm, few), transient(llm, many)
    grown = (large - small) / (many - few)
    assert grown < 8 * LONG / 2, f"{grown:.0f} bytes more for each prompt more: {small:,} for {few}, {large:,} for {many}"


def test_every_answer_of_a_mixed_list_is_that_of_its_prompt_alone():
    model = {"use": "scripted", "options": {"random": True}}
    params = SamplingParams(temperature=0.0, max_tokens=6)
    given = {"max_model_len": 128, "max_num_seqs": 8, "num_blocks": 512, "stack": ["free-list"], "threads": 1}
    with LLM("none", config={"model": model, "tokenizer": {"use": "bytes"}}, **given) as llm:
        prompts = prompts_of(24)
        together = llm.generate(prompts, params)
        alone = [llm.generate(prompt, params)[0] for prompt in prompts]
    assert [one.outputs for one in together] == [one.outputs for one in alone]
    assert len({one.outputs[0].token_ids for one in together}) == len(prompts)


def test_logprobs_of_the_prompt_pass_through():
    """They come with one output of the stream, whichever."""
    logprobs = (None, TokenLogprob(65, -0.5, ((65, -0.5),)))
    piece = RequestOutput(request_id="r", prompt="ab", num_prompt_tokens=2, num_cached_tokens=0, outputs=(), finished=False)
    said = [CompletionOutput(index=0, text=text, token_ids=(ord(text),), finish_reason=reason) for text, reason in (("x", None), ("y", "length"))]

    async def news(first: int):
        for at, output in enumerate(said):
            yield replace(piece, outputs=(output,), finished=at == 1, prompt_logprobs=logprobs if at == first else None)

    for first in (0, 1):
        gathered = asyncio.run(whole(news(first), SamplingParams(prompt_logprobs=1)))
        assert gathered.prompt_logprobs == logprobs
        assert (gathered.outputs[0].text, gathered.outputs[0].finish_reason, gathered.finished) == ("xy", "length", True)
    assert asyncio.run(whole(news(5), SamplingParams())).prompt_logprobs is None
