"""What clients are told of the prefix cache, by a real engine: cached tokens of repeated prompts, salts, and the counts of /metrics."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from typing import Any

import openai
import pytest
from http_live import Live, eventually
from prometheus_client.parser import text_string_to_metric_families

from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly

SIZE = 8


@contextmanager
def served(executor: str = "in-process", *, num_blocks: int = 64, num_host_blocks: int = 0) -> Iterator[tuple[openai.OpenAI, Live, Assembly]]:
    stack, options = ["lru-prefix", "free-list"], {"lru-prefix": {"sample_every": 1}}
    if num_host_blocks:
        stack, options = ["cpu-swap", *stack], {"cpu-swap": {"num_host_blocks": num_host_blocks}, **options}
    config = {
        "model": {"source": "none", "use": "fingerprint", "max_model_len": 128},
        "executor": {"use": executor},
        "block_allocator": {"num_blocks": num_blocks, "block_size": SIZE, "stack": stack, "options": options},
        "scheduler": {"max_num_seqs": 4, "preemption": "swap" if num_host_blocks else "auto"},
        "engine": {"threads": 1},
    }
    with assemble(config, frontends=[], progress=False, environ={}) as assembly, Live(assembly.client) as live:
        with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
            yield client, live, assembly
        assert eventually(lambda: assembly.engine.idle and not assembly.engine.audit())


def cached(usage: openai.types.CompletionUsage | None) -> tuple[int, int]:
    """Tokens of the prompt, and those that were there."""
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens or 0


def complete(client: openai.OpenAI, prompt: list[int], stream: bool = False, **more: Any) -> tuple[str, int, int]:
    """Text, tokens of the prompt, cached tokens."""
    given: dict[str, Any] = {"model": "fingerprint", "prompt": prompt, "temperature": 0, "max_tokens": 3, **more}
    if not stream:
        answer = client.completions.create(**given)
        return (answer.choices[0].text, *cached(answer.usage))
    chunks = list(client.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    return ("".join(chunk.choices[0].text for chunk in chunks if chunk.choices), *cached(chunks[-1].usage))


@pytest.mark.parametrize("executor", ["in-process", "delayed"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_prompt_is_cached_but_for_its_last_token(executor: str, stream: bool) -> None:
    """Whole blocks, and never the whole prompt: what comes first is computed from its last token."""
    with served(executor) as (client, _, _):
        for number, length in enumerate((SIZE, 2 * SIZE, 2 * SIZE + 1, 2 * SIZE - 1, 1)):
            prompt = [32 + number, *range(65, 65 + length - 1)]
            first, *again = [complete(client, prompt, stream) for _ in range(3)]
            most = (length - 1) // SIZE * SIZE
            assert first[1:] == (length, 0)
            assert [found[1:] for found in again] == [(length, most)] * 2
            assert {found[0] for found in again} == {first[0]}


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def test_a_conversation_finds_what_was_said() -> None:
    with served() as (client, _, assembly):
        messages: list[Any] = [{"role": "user", "content": "a question of some length"}]
        asked: list[tuple[int, ...]] = []
        for _ in range(3):
            prompt = assembly.client.tokenizer.apply_chat_template(messages).token_ids
            known = max((common(prompt, before) for before in asked), default=0)
            answer = client.chat.completions.create(model="fingerprint", messages=messages, temperature=0, max_tokens=4)
            length, there = cached(answer.usage)
            assert length == len(prompt)
            assert there == known // SIZE * SIZE
            asked.append(prompt)
            messages = [*messages, {"role": "assistant", "content": "an answer"}, {"role": "user", "content": "and then?"}]
        assert known >= 2 * SIZE


def test_salts_do_not_share() -> None:
    with served() as (client, _, _):
        prompt = list(range(40, 40 + 2 * SIZE + 1))
        seen = [complete(client, prompt, extra_body=extra)[2] for extra in ({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"cache_salt": "a"}, {})]
        assert seen == [0, 0, 0, 2 * SIZE, 2 * SIZE]


def test_what_is_retained_outlives_what_is_not() -> None:
    """Both are older than all that came since; the pool holds one of them and the newest."""
    with served(num_blocks=16) as (client, live, _):
        kept, dropped = [70, *range(40, 40 + 2 * SIZE)], [71, *range(40, 40 + 2 * SIZE)]
        complete(client, kept, extra_body={"cache_retention": 600})
        complete(client, dropped)
        for number in range(8):
            complete(client, [80 + number, *range(40, 40 + 2 * SIZE)])
        assert [complete(client, prompt)[2] for prompt in (kept, dropped)] == [2 * SIZE, 0]
        assert numbers(live)["corekit_kv_blocks_retained"] >= 2


def numbers(live: Live) -> dict[str, float]:
    """By name and values of the labels but the model's."""
    samples = [sample for family in text_string_to_metric_families(live.http.get("/metrics").text) for sample in family.samples]
    return {" ".join((sample.name, *(value for label, value in sample.labels.items() if label != "model_name"))): sample.value for sample in samples}


def test_the_metrics_count_what_clients_were_told() -> None:
    with served(num_blocks=16) as (client, live, assembly):
        told = [complete(client, [80 + number // 2, *range(40, 40 + 3 * SIZE)]) for number in range(12)]
        assert eventually(lambda: assembly.engine.idle)
        found = numbers(live)
        assert found["corekit_prefix_cache_queries_total"] == sum(length for _, length, _ in told)
        assert found["corekit_prefix_cache_hits_total"] == sum(there for _, _, there in told) == 6 * 3 * SIZE
        assert found["corekit_prefix_cache_evictions_total"] > 0
        assert found["corekit_prefix_cache_evictions_total"] % SIZE == 0
        assert found["corekit_kv_block_lifetime_seconds_count"] == found["corekit_prefix_cache_evictions_total"] / SIZE
        assert found["corekit_kv_cache_usage_perc"] == 0, "nobody runs, however much is cached"
        assert found["corekit_kv_blocks idle"] > 0
        assert sum(found[f"corekit_kv_blocks {state}"] for state in ("used", "idle", "free")) == 16


@pytest.mark.parametrize(("num_host_blocks", "refused"), [(64, False), (3, True)])
def test_the_metrics_count_who_was_parked(num_host_blocks: int, refused: bool) -> None:
    """Three answers in a pool for one and a half: what was copied are whole blocks, and with little room some are computed again."""
    with served(num_blocks=10, num_host_blocks=num_host_blocks) as (client, live, assembly):
        with ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(complete, client, [70 + number, *range(40, 40 + SIZE)], max_tokens=40, extra_body={"ignore_eos": True}) for number in range(3)]
            together = [one.result()[0] for one in asked]
        assert eventually(lambda: assembly.engine.idle)
        found = numbers(live)
        swapped, again = (found[f"corekit_num_preemptions_by_mode_total {mode}"] for mode in ("swap", "recompute"))
        assert swapped + again == found["corekit_num_preemptions_total"] > 0
        assert swapped > 0 or refused
        assert again == found["corekit_swap_refusals_total"]
        assert (again > 0) is refused
        size = assembly.pool.bytes_per_block
        for way in ("to_host", "to_device"):
            assert found[f"corekit_kv_copied_bytes_total {way}"] % size == 0
            assert found[f"corekit_kv_copied_bytes_total {way}"] > 0 or refused
        assert sum(found[f"corekit_host_kv_blocks {state}"] for state in ("parked", "cached", "free")) == num_host_blocks
        assert found["corekit_cpu_cache_usage_perc"] == found["corekit_host_kv_blocks parked"] == 0, "nobody is parked any more"
        assert [complete(client, [70 + number, *range(40, 40 + SIZE)], max_tokens=40, extra_body={"ignore_eos": True})[0] for number in range(3)] == together
