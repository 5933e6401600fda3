"""Text, ends and logprobs of an answer: on the whole engine with both executors, by the client and by HTTP."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import httpx
import pytest
from behaviours_rig import EXECUTORS, Job, engine, run, served

from corekit.api import SamplingParams
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.fcfs import Fcfs

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def params(**more: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 40, **more})


class TwoEnds(BytesTokenizer):
    """Two EOS ids, as some models have."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return (256, ord("b"))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("at", [0, 7])
def test_min_tokens_against_two_eos_ids(executor: str, at: int) -> None:
    """The second EOS is the first thing the model wants; a prompt of 100 tokens counts for nothing; a preemption changes nothing."""

    class Once(Fcfs):
        plans = 0

        def plan(self, step: Any) -> None:
            self.plans += 1
            if at and self.plans == at and step.resident:
                step.preempt(step.resident[-1])
            super().plan(step)

    parts = {"tokenizer": TwoEnds(), "scheduler_policy": Once()}
    with engine(executor, model="scripted", texts=("bcde",), budget=128, parts=parts) as assembly:
        prompt = "x" * 100
        for more in ({}, {"stop_token_ids": (ord("c"), ord("d"))}, {"stop_token_ids": (0,)}):
            ((plain,), (least,)) = run(assembly, [Job(prompt, params(**more)), Job(prompt, params(min_tokens=5, **more))])
            assert (plain.ids, plain.reason) == ([ord("b")], "stop")
            ends = {256, ord("b"), *more.get("stop_token_ids", ())}
            assert len(least.ids) >= 5
            assert not ends & set(least.ids[:5])
        ((ignoring,),) = run(assembly, [Job(prompt, params(min_tokens=5, max_tokens=12, ignore_eos=True))])
        # With EOS ignored nothing is banned, the last id of the vocabulary (EOS itself) least of all.
        assert (ignoring.ids, ignoring.reason) == ([*b"bcde", 256, *b"bcde", 256, *b"bc"], "length")


@pytest.mark.parametrize("executor", EXECUTORS)
def test_min_tokens_and_stop_strings(executor: str) -> None:
    with engine(executor, model="scripted", texts=("abcabcabcabc",)) as assembly:
        early, late, across = run(assembly, [Job("x", params(stop="bc", min_tokens=minimum)) for minimum in (0, 4, 6)])
        assert (early[0].text, early[0].ids, early[0].stop_reason) == ("a", [*b"abc"], "bc")
        assert (late[0].text, len(late[0].ids)) == ("abca", 6)
        assert (across[0].text, len(across[0].ids)) == ("abca", 6)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_random_unicode_is_never_split_repeated_or_lost(executor: str) -> None:
    rng = random.Random(5)
    alphabet = "aé世🙂\u0301\u200d\U0001f468 \n"
    texts = tuple("".join(rng.choice(alphabet) for _ in range(12)) for _ in range(8))
    broken = bytes(rng.choice((0xC3, 0xA9, 0xE4, 0xB8, 0x96, 0xF0, 0x41)) for _ in range(24))
    scripts = (*(tuple(text.encode()) for text in texts), tuple(broken))
    with engine(executor, model="scripted", scripts=scripts) as assembly:
        jobs = [Job([prompt, 0], params(max_tokens=60, stop=stop)) for prompt in range(9, 18) for stop in ((), ("never there", "\n\n\n\n\n"))]
        for job, (answer,) in zip(jobs, run(assembly, jobs), strict=True):
            wanted = bytes(scripts[job.prompt[0] % 9]).decode(errors="replace")
            assert answer.text == wanted
            assert answer.ids == [*scripts[job.prompt[0] % 9], 256]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_ids_without_a_text_are_no_fault(executor: str) -> None:
    """A model that is padded beyond its tokenizer may answer with an id that has no text; logprobs can speak of it."""
    with served(executor, model="scripted", scripts=((97, 280, 98, 299),), vocab_size=300) as (http, assembly):
        ((answer,),) = run(assembly, [Job("x", params(logprobs=2))])
        assert (answer.ids, answer.text, answer.reason) == ([97, 280, 98, 299, 256], "ab", "stop")
        completion = {"prompt": "x", "logprobs": 2}
        chat = {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 2}
        for path, more in ((COMPLETIONS, completion), (CHAT, chat)):
            response = http.post(path, json={"model": "scripted", "temperature": 0, "max_tokens": 5, **more})
            assert response.status_code == 200, response.text


# -- logprobs


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    found = [block.removeprefix("data: ") for block in response.text.split("\n\n") if block]
    assert found[-1] == "[DONE]"
    return [json.loads(block) for block in found[:-1]]


def four_forms(http: httpx.Client, stop: dict[str, Any], top: int | None) -> list[tuple[str, str, list[int], list[float]]]:
    """(text, reason, bytes of all tokens, logprobs) as told by chat and completions, whole and streamed."""
    forms = []
    common = {"model": "scripted", "temperature": 0, "max_tokens": 40, **stop}
    asked = {**common, "messages": [{"role": "user", "content": "Q"}], "logprobs": True, **({} if top is None else {"top_logprobs": top})}
    answer = http.post(CHAT, json=asked).json()["choices"][0]
    streamed = [choice for chunk in chunks(http.post(CHAT, json={**asked, "stream": True})) for choice in chunk["choices"]]
    text = "".join(choice["delta"].get("content", "") for choice in streamed)
    for said, reason, entries in (
        (answer["message"]["content"], answer["finish_reason"], answer["logprobs"]["content"]),
        (text, streamed[-1]["finish_reason"], [entry for choice in streamed if choice["logprobs"] for entry in choice["logprobs"]["content"]]),
    ):
        assert all(len(entry["top_logprobs"]) == (top or 0) for entry in entries)
        forms.append((said, reason, [byte for entry in entries for byte in entry["bytes"]], [entry["logprob"] for entry in entries]))
    asked = {**common, "prompt": "Q", "logprobs": top or 0}
    answer = http.post(COMPLETIONS, json=asked).json()["choices"][0]
    streamed = [choice for chunk in chunks(http.post(COMPLETIONS, json={**asked, "stream": True})) for choice in chunk["choices"]]
    pieces = [choice["logprobs"] for choice in streamed if choice["logprobs"]]
    for said, reason, columns in (
        (answer["text"], answer["finish_reason"], [answer["logprobs"]]),
        ("".join(choice["text"] for choice in streamed), streamed[-1]["finish_reason"], pieces),
    ):
        names = [name for column in columns for name in column["tokens"]]
        values = [value for column in columns for value in column["token_logprobs"]]
        tops = [one for column in columns for one in column["top_logprobs"]]
        offsets = [offset for column in columns for offset in column["text_offset"]]
        assert len(names) == len(values) == len(tops) == len(offsets)
        assert all(name in one for name, one in zip(names, tops, strict=True))
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] <= len(said) + 3
        raw = b"".join(bytes.fromhex(name[6:].replace("\\x", "")) if name.startswith("bytes:") else name.encode() for name in names)
        forms.append((said, reason, [*raw], values))
    return forms


@pytest.mark.parametrize("executor", EXECUTORS)
def test_logprobs_describe_the_text_in_all_four_forms(executor: str) -> None:
    """Chinese, a lone byte, and ends by EOS, by a stop id and by a stop string of two tokens."""
    script = (*"A 世".encode(), 0xFF, *b"be ta")
    whole = "A 世\ufffdbe ta"
    with served(executor, model="scripted", scripts=(script,)) as (http, _):
        ends = (({}, whole, script), ({"stop_token_ids": [ord("e")]}, "A 世\ufffdbe", script[:8]), ({"stop": ["be"]}, "A 世\ufffd", script[:8]))
        for (stop, text, raw), top in itertools.product(ends, (None, 0, 5)):
            for said, reason, found, values in four_forms(http, stop, top):
                assert (said, reason) == (text, "stop")
                assert found == [*raw]
                assert len(values) == len(raw) + (not stop)  # EOS has no bytes
                assert all(-1e-3 < value <= 0 for value in values)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_samples_with_ends_of_their_own(executor: str) -> None:
    """n and two prompts: each choice has its own reason, usage sums the outputs and counts a prompt once."""
    with served(executor, model="scripted", random=True) as (http, _):
        asked = {"model": "scripted", "prompt": ["Q", "xyz"], "n": 4, "seed": 11, "temperature": 1.3, "max_tokens": 40, "stop": ["a", "e", "7"], "logprobs": 0}
        answer = http.post(COMPLETIONS, json=asked).json()
        assert [choice["index"] for choice in answer["choices"]] == list(range(8))
        lengths = [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]]
        assert len(set(lengths)) > 3 and {choice["finish_reason"] for choice in answer["choices"]} == {"stop", "length"}
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, sum(lengths))
        told = chunks(http.post(COMPLETIONS, json={**asked, "stream": True, "stream_options": {"include_usage": True}}))
        assert (told[-1]["choices"], told[-1]["usage"]) == ([], answer["usage"])
        for choice in answer["choices"]:
            mine = [piece for chunk in told[:-1] for piece in chunk["choices"] if piece["index"] == choice["index"]]
            assert "".join(piece["text"] for piece in mine) == choice["text"]
            assert [piece["finish_reason"] for piece in mine if piece["finish_reason"]] == [choice["finish_reason"]]
