"""The demo model under memory pressure: whatever becomes of victims, answers are those of a pool that is large enough.

Matrix products round differently with another number of rows, so logits move a little; the prompts are such that the two
likeliest tokens never come close to each other, and the test sees to it that no logprob moved by half of `MIN_MARGIN`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from test_parity_demo import CHATS, MIN_MARGIN

from corekit.api import EngineStats, SamplingParams, TokenLogprob
from corekit.compose.assemble import assemble
from corekit.engine.request import NewRequest

pytestmark = pytest.mark.slow

PARAMS = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=1)
FOR_THREE = 24
"""Blocks of 16 tokens: each of the eight takes seven in the end."""
Told = tuple[list[list[int]], list[list[TokenLogprob]], EngineStats]


def answers(cache: Path, stack: Sequence[str], preemption: str, num_blocks: int) -> Told:
    options = {"cpu-swap": {"num_host_blocks": 64}} if "cpu-swap" in stack else {}
    config: dict[str, Any] = {
        "model": {"use": "transformers", "dtype": "float32", "max_model_len": 256},
        "attention_backend": {"use": "torch", "options": {"poison": True}},
        "engine": {"device": "cpu"},
        "block_allocator": {"block_size": 16, "num_blocks": num_blocks, "stack": list(stack), "options": options},
        "scheduler": {"max_num_seqs": 8, "watermark": 0, "preemption": preemption},
    }
    ids: list[list[int]] = [[] for _ in CHATS]
    logprobs: list[list[TokenLogprob]] = [[] for _ in CHATS]
    assembly = assemble(config, frontends=(), environ={"COREKIT_CACHE": str(cache)}, progress=False)
    with closing(assembly):  # never started: its engine is stepped here and not by a thread
        engine, tokenizer = assembly.engine, assembly.client.tokenizer
        for at, text in enumerate(CHATS):
            prompt = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True).token_ids
            engine.submit(NewRequest(request_id=str(at), token_ids=tuple(prompt), params=PARAMS, max_tokens=PARAMS.max_tokens or 0, end_ids=()))
        while not engine.idle:
            for delta in engine.step():
                assert delta.error is None
                ids[int(delta.request_id)] += delta.token_ids
                logprobs[int(delta.request_id)] += delta.logprobs or ()
        assert engine.audit() == []
        return ids, logprobs, engine.stats()


@pytest.fixture(scope="module")
def unpressed(demo_cache_dir: Path) -> Told:
    told = answers(demo_cache_dir, ["free-list"], "recompute", 8 * 8)
    assert told[2].num_preemptions == 0
    assert sum(len(set(answer)) > 32 for answer in told[0]) > 6, "answers that repeat themselves prove little"
    return told


@pytest.mark.parametrize("preemption", ["swap", "recompute", "auto"])
def test_eight_requests_on_a_pool_for_three_answer_as_without_pressure(preemption: str, unpressed: Told, demo_cache_dir: Path) -> None:
    ids, logprobs, stats = answers(demo_cache_dir, ["cpu-swap", "lru-prefix", "free-list"], preemption, FOR_THREE)
    assert stats.num_preemptions >= 3
    if preemption != "auto":  # whose way depends on what was measured
        assert stats.num_swap_preemptions == (stats.num_preemptions if preemption == "swap" else 0)
    if preemption == "swap":
        assert stats.num_bytes_to_device
    for answer, told, wanted, likely in zip(ids, logprobs, unpressed[0], unpressed[1], strict=True):
        assert answer == wanted
        assert [one.logprob for one in told] == pytest.approx([one.logprob for one in likely], abs=MIN_MARGIN / 2)
