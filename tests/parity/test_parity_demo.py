"""The demo model through the whole engine, on its reference parts and on the fast ones, against the library's own `generate`: real prompts, fp32, greedy.

Rounding differs between a chunk, a batch and a whole prompt, so only prompts are used along whose reference answer the two
likeliest tokens never come closer than `MIN_MARGIN`; the test checks that too. Of 24 candidates two came closer (one to a tie) and were left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from corekit.api import SamplingParams, WeightSource
from corekit.compose.assemble import assemble
from corekit.engine.engine import Engine
from corekit.engine.request import NewRequest

NUM_TOKENS = 32
PLAIN = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
PENALISED_PROMPT = 9
PENALISED = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, repetition_penalty=1.25, banned_token_ids=(253, 28, 30), prompt_logprobs=0)
MIN_MARGIN = 1e-3
"""In logits. Between chunks of 7 and a whole prompt they were seen to differ by at most 5e-5."""
CHATS = (
    "Write a short story about a lighthouse keeper who finds a bottle.",
    "Explain how a bicycle stays upright while it moves.",
    "Describe a market in a harbour town early in the morning.",
    "What are the main differences between plants and animals?",
    "How does a refrigerator keep food cold?",
    "Why do the seasons change during the year?",
    "Plan a weekend trip to the mountains for two people.",
    "Explain recursion to a ten-year-old with an example.",
)
TEXTS = (
    "The old clock in the town hall had stopped at midnight, and",
    "In 1889, the engineers who built the tower in Paris",
    "Photosynthesis is the process by which",
    "def fibonacci(n):\n    ",
    "The three most important things to remember when hiking in winter are",
    "The stock market fell sharply on Tuesday after",
    "Scientists have discovered a new species of frog in",
    "My grandmother used to say that",
)
REFERENCE, FAST = ("transformers", "torch"), ("llama", "cpu-paged")
Prompts = Sequence[tuple[int, ...]]


@pytest.fixture(scope="module")
def prompts(demo_source: WeightSource) -> Prompts:
    from corekit.builtin.hf_tokenizer import HfTokenizer

    tokenizer = HfTokenizer(demo_source)
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True).token_ids for text in CHATS]
    return [ids for pair in zip(chats, [tuple(tokenizer.encode(text)) for text in TEXTS], strict=True) for ids in pair]


@pytest.fixture(scope="module")
def library(demo_source: WeightSource) -> Any:
    config = transformers.AutoConfig.for_model(**dict(demo_source.config))
    return transformers.LlamaForCausalLM.from_pretrained(None, config=config, state_dict=dict(demo_source.tensors()), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def wanted(library: Any, prompts: Prompts) -> list[list[int]]:
    """What the library's own loop answers, all prompts in one batch that is padded on the left."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    seen = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    length = {"max_new_tokens": NUM_TOKENS, "min_new_tokens": NUM_TOKENS}
    with torch.inference_mode():
        out = library.generate(
            ids, attention_mask=seen, do_sample=False, eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True, **length
        )
    best = torch.stack(out.logits, 1).topk(2, -1).values
    assert (best[..., 0] - best[..., 1]).min() > MIN_MARGIN, "a prompt on which rounding could decide proves nothing"
    answers: list[list[int]] = out.sequences[:, width:].tolist()
    assert len(answers) == 16
    assert sum(len(set(answer)) > NUM_TOKENS // 2 for answer in answers) > len(answers) * 3 // 4, "answers that repeat themselves prove little"
    return answers


@pytest.fixture(scope="module")
def penalised(library: Any, prompts: Prompts) -> tuple[list[int], list[float]]:
    """(what the library answers to PENALISED, the logprob of each token of its prompt but the first)."""
    ids = torch.tensor([prompts[PENALISED_PROMPT]])
    length = {"max_new_tokens": PENALISED.max_tokens, "min_new_tokens": PENALISED.max_tokens, "eos_token_id": None, "pad_token_id": 0}
    banned = list(PENALISED.banned_token_ids)
    with torch.inference_mode():
        out = library.generate(
            ids,
            do_sample=False,
            repetition_penalty=PENALISED.repetition_penalty,
            suppress_tokens=banned,
            output_scores=True,
            return_dict_in_generate=True,
            **length,
        )
        logits = library(ids).logits[0, :-1].log_softmax(-1)
    best = torch.stack(out.scores, 1).topk(2, -1).values
    assert (best[..., 0] - best[..., 1]).min() > MIN_MARGIN, "a prompt on which rounding could decide proves nothing"
    return out.sequences[0, ids.shape[1] :].tolist(), logits.gather(1, ids[0, 1:, None])[:, 0].tolist()


def test_the_engine_answers_like_generate(prompts: Prompts, wanted: list[list[int]], penalised: tuple[list[int], list[float]], demo_cache_dir: Path) -> None:
    """Eight requests that arrive one after another, in chunks of 7, in a pool that is too small for them at the end; then a penalised one.

    One test: the library's answers take long, and are wanted in one process only.
    """
    asked = list(zip(prompts, wanted, strict=True))
    for parts, block_size, num_blocks, some in ((REFERENCE, 4, 80, asked[:8]), (FAST, 16, 20, asked[8:])):
        check(parts, block_size, num_blocks, some, prompts[PENALISED_PROMPT], penalised, demo_cache_dir)


@pytest.mark.slow
def test_smaller_blocks_answer_like_generate(prompts: Prompts, wanted: list[list[int]], penalised: tuple[list[int], list[float]], demo_cache_dir: Path) -> None:
    check(FAST, 8, 42, list(zip(prompts, wanted, strict=True))[:8], prompts[PENALISED_PROMPT], penalised, demo_cache_dir)


def check(
    parts: tuple[str, str],
    block_size: int,
    num_blocks: int,
    asked: Sequence[tuple[tuple[int, ...], list[int]]],
    penalised_prompt: tuple[int, ...],
    penalised: tuple[list[int], list[float]],
    demo_cache_dir: Path,
) -> None:
    config = {
        "model": {"use": parts[0], "dtype": "float32", "max_model_len": 256},
        "attention_backend": {"use": parts[1], "options": {"poison": True}},
        "engine": {"device": "cpu"},
        "block_allocator": {"block_size": block_size, "num_blocks": num_blocks, "stack": ["free-list"]},
        "scheduler": {"max_num_seqs": 8, "long_prefill_token_threshold": 7, "preemption": "recompute"},
    }
    assembly = assemble(config, frontends=(), environ={"COREKIT_CACHE": str(demo_cache_dir)}, progress=False)
    jobs = [(prompt, PLAIN) for prompt, _ in asked] + [(penalised_prompt, PENALISED)]
    with closing(assembly):  # never started: its engine is stepped here and not by a thread
        answers, logprobs = run(assembly.engine, jobs)
        assert assembly.engine.stats().num_preemptions > 1, "the pool is not small enough to prove anything about preemption"
        assert assembly.engine.audit() == []
    assert answers == [*(answer for _, answer in asked), penalised[0]]
    assert logprobs == pytest.approx(penalised[1], abs=1e-3)


def run(engine: Engine, jobs: Sequence[tuple[tuple[int, ...], SamplingParams]]) -> tuple[list[list[int]], list[float]]:
    """(the answers, the logprobs of the one prompt that asks for them); a request arrives every second step."""
    answers: list[list[int]] = [[] for _ in jobs]
    logprobs: list[float] = []
    for number in range(3000):
        if number % 2 == 0 and number // 2 < len(jobs):
            at = number // 2
            prompt, params = jobs[at]
            engine.submit(NewRequest(request_id=str(at), token_ids=prompt, params=params, max_tokens=params.max_tokens or 0, end_ids=()))
        for delta in engine.step():
            assert delta.error is None
            answers[int(delta.request_id)] += delta.token_ids
            logprobs += [one.logprob for one in delta.prompt_logprobs or () if one is not None]
        if engine.idle and number // 2 >= len(jobs):
            return answers, logprobs
    raise AssertionError("the answers did not end")
