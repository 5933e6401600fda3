"""The frontend on a real engine that answers by a script: text, stops, faults and clients that leave, as a client sees them."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from http_live import Live, check_error, events, eventually

from corekit.compose.assemble import assemble
from corekit.compose.assembly import Assembly

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MODEL = "scripted"


def at_rest(assembly: Assembly, seconds: float = 5.0) -> bool:
    """Nothing is alive and the audit is clean. Asked until it holds: the engine's thread may be in the middle of its last step."""
    return eventually(lambda: assembly.engine.idle and not assembly.engine.audit(), seconds)


@contextmanager
def engine(executor: str = "in-process", *, num_blocks: int = 256, scheduler: dict[str, Any] | None = None, **script: Any) -> Iterator[tuple[Live, Assembly]]:
    """A served engine. On leaving, nothing of any request may be left in it."""
    config = {
        "model": {"source": "none", "use": "scripted", "max_model_len": 512, "options": script},
        "tokenizer": {"use": "bytes"},
        "executor": {"use": executor},
        "block_allocator": {"num_blocks": num_blocks, "block_size": 4},
        "scheduler": {"max_num_batched_tokens": 64, "max_num_seqs": 16, **(scheduler or {})},
        "engine": {"threads": 1},
    }
    with assemble(config, frontends=[], progress=False) as assembly, Live(assembly.client) as live:
        yield live, assembly
        assert at_rest(assembly)
        assert assembly.client.stats().num_running == assembly.client.stats().num_waiting == 0
        response = live.http.post(TEXT, json=body(TEXT, prompt="z", max_tokens=2))
        assert response.status_code == 200, response.text


@pytest.fixture(params=["in-process", "delayed"])
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def body(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"prompt": "Q"} if path == TEXT else {"messages": [{"role": "user", "content": "Q"}]}
    return {"model": MODEL, **prompt, "temperature": 0, **({"max_tokens": 64} | fields)}


def ask(live: Live, path: str, **fields: Any) -> list[tuple[str, str]]:
    """(text, finish reason) by index; asked for whole and as a stream, which must agree in text, reasons and usage."""
    whole = live.http.post(path, json=body(path, **fields))
    assert whole.status_code == 200, whole.text
    answer = whole.json()
    response = live.http.post(path, json=body(path, **fields, stream=True, stream_options={"include_usage": True}))
    found = events(response.text)
    assert found[-1] == "[DONE]"
    chunks = [json.loads(event) for event in found[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == answer["usage"]["completion_tokens"]
    said: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            assert choice["index"] not in reasons
            said[choice["index"]] = said.get(choice["index"], "") + (choice["text"] if path == TEXT else choice["delta"].get("content", ""))
            if choice["finish_reason"]:
                reasons[choice["index"]] = choice["finish_reason"]
    result = [(choice["text"] if path == TEXT else choice["message"]["content"], choice["finish_reason"]) for choice in answer["choices"]]
    assert [(said[index], reasons[index]) for index in range(len(said))] == result
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(result)))
    return result


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_stop_strings(executor: str, path: str) -> None:
    with engine(executor, texts=("alpha beta gamma end",)) as (live, _):
        assert ask(live, path) == [("alpha beta gamma end", "stop")]
        assert ask(live, path, stop=["beta gamma"]) == [("alpha ", "stop")]
        assert ask(live, path, stop="beta gamma", include_stop_str_in_output=True) == [("alpha beta gamma", "stop")]
        assert ask(live, path, stop=["beta gamble", "x"]) == [("alpha beta gamma end", "stop")]
        assert ask(live, path, stop=["endless"]) == [("alpha beta gamma end", "stop")]
        assert ask(live, path, stop=["gamma end"], max_tokens=14) == [("alpha beta gam", "length")]
        assert ask(live, path, stop_token_ids=[ord("g")])[0] == ("alpha beta g", "stop")
        assert ask(live, path, stop=["alpha"], min_tokens=8) == [("alpha beta gamma end", "stop")]


def test_characters_of_several_bytes() -> None:
    with engine(texts=("A 世界 é🙂",)) as (live, _):
        for path in (TEXT, CHAT):
            assert ask(live, path) == [("A 世界 é🙂", "stop")]
            assert ask(live, path, stop=["界"]) == [("A 世", "stop")]
        assert ask(live, TEXT, max_tokens=4)[0][0] == "A \ufffd"


def test_min_tokens_and_ignore_eos() -> None:
    with engine(texts=("ab",)) as (live, _):
        assert ask(live, TEXT) == [("ab", "stop")]
        usage = live.http.post(TEXT, json=body(TEXT, min_tokens=5)).json()["usage"]
        assert usage["completion_tokens"] >= 5
        assert ask(live, TEXT, ignore_eos=True, max_tokens=9)[0][1] == "length"


def test_tiny_temperatures() -> None:
    with engine(texts=("fine",)) as (live, _):
        for temperature in (0, 1e-12, 1e-8, 1e-4):
            assert ask(live, TEXT, temperature=temperature, top_p=1e-4) == [("fine", "stop")]


def test_logprobs_describe_the_same_tokens_in_all_forms(executor: str) -> None:
    with engine(executor, texts=("alpha beta gamma",)) as (live, _):
        for stop in ({"stop_token_ids": [ord("g")]}, {"stop": ["a gam"]}, {}):
            _check_logprobs(live, stop)


def _check_logprobs(live: Live, stop: dict[str, Any]) -> None:
    whole = live.http.post(TEXT, json=body(TEXT, logprobs=2, **stop)).json()
    logprobs = whole["choices"][0]["logprobs"]
    assert {len(column) for column in logprobs.values()} == {whole["usage"]["completion_tokens"]}
    assert "".join(logprobs["tokens"]).startswith(whole["choices"][0]["text"])
    assert all(value <= 0 for value in logprobs["token_logprobs"])
    chat = live.http.post(CHAT, json=body(CHAT, logprobs=True, top_logprobs=2, **stop)).json()
    content = chat["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in content] == logprobs["tokens"]
    assert all(len(entry["top_logprobs"]) == 2 for entry in content)
    for path, asked in ((TEXT, {"logprobs": 2}), (CHAT, {"logprobs": True, "top_logprobs": 2})):
        chunks = [json.loads(event) for event in events(live.http.post(path, json=body(path, stream=True, **asked, **stop)).text)[:-1]]
        pieces = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
        tokens = [name for piece in pieces for name in (piece["tokens"] if path == TEXT else [entry["token"] for entry in piece["content"]])]
        assert tokens == logprobs["tokens"]


def test_several_samples_and_prompts() -> None:
    with engine(random=True) as (live, _):
        one = ask(live, TEXT, n=4, seed=7, temperature=1.5, max_tokens=12)
        assert len(one) == 4
        assert len({text for text, _ in one}) > 1
        assert ask(live, TEXT, n=4, seed=7, temperature=1.5, max_tokens=12) == one
        assert len({text for text, _ in ask(live, TEXT, n=4, max_tokens=12)}) == 1
        both = ask(live, TEXT, prompt=["Q", "another one"], n=4, seed=7, temperature=1.5, max_tokens=12)
        assert both[:4] == one
        assert len(both) == 8
        usage = live.http.post(TEXT, json=body(TEXT, prompt=["Q", "xyz"], n=4, ignore_eos=True, max_tokens=3)).json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1 + 3, 8 * 3)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": [257]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"stop_token_ids": [10**9], "min_tokens": 1}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"max_tokens": 600}, "max_tokens"),
    ({"prompt": "x" * 600}, "prompt"),
    ({"prompt": "x" * 200}, "prompt"),
    ({"n": 16, "prompt": "hi"}, "n"),
    ({"prompt": ["fine", [256, 257]]}, "prompt[1]"),
]


def test_what_the_engine_refuses_is_400_and_harms_nobody() -> None:
    with engine(texts=("x" * 60,), num_blocks=32, step_seconds=0.002, scheduler={"max_num_seqs": 8}) as (live, _), ThreadPoolExecutor() as pool:
        neighbour = pool.submit(ask, live, TEXT, max_tokens=60)
        for (fields, param), streaming in itertools.product(REFUSED, (False, True)):
            response = live.http.post(TEXT, json=body(TEXT, stream=streaming, **fields))
            assert response.status_code == 400, response.text
            assert check_error(response)["param"] == param
        assert neighbour.result()[0][0] == "x" * 60


def test_template_options_are_those_of_the_allow_list() -> None:
    with engine(texts=("ok",)) as (live, _):
        refused = live.http.post(CHAT, json=body(CHAT, chat_template_kwargs={"tokenize": False}))
        assert refused.status_code == 400
        assert check_error(refused)["param"] == "chat_template_kwargs"
        assert ask(live, CHAT, continue_final_message=True) == [("ok", "stop")]


@pytest.mark.parametrize("at", [0, 5, 9])
def test_a_fault_in_the_model_is_one_request_s(executor: str, at: int) -> None:
    with engine(executor, texts=("0123456789",), raise_on=ord("Q") if at == 0 else ord("0") + at - 1) as (live, _):
        for streaming in (False, True):
            response = live.http.post(TEXT, json=body(TEXT, stream=streaming))
            if at == 0 or not streaming:
                assert response.status_code == 500
                assert check_error(response)["code"] == "request_failed"
            else:
                found = [json.loads(event) for event in events(response.text)]
                assert found[-1]["error"]["code"] == "request_failed"
                assert found[-1]["error"]["message"].count("scripted to fail")
                assert "".join(chunk["choices"][0]["text"] for chunk in found[:-1]) == "0123456789"[:at]
        assert live.http.get("/health").status_code == 200


def test_a_full_queue_is_503_for_the_rest_only() -> None:
    with engine(texts=("x" * 60,), step_seconds=0.005, scheduler={"max_num_seqs": 1, "max_queued_requests": 2}) as (live, _), ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: httpx.post(live.url + TEXT, json=body(TEXT, max_tokens=20), timeout=20, verify=False), range(12)))
        assert {answer.status_code for answer in answers} == {200, 503}
        for answer in answers:
            if answer.status_code == 503:
                assert check_error(answer)["code"] == "server_overloaded"
                assert answer.headers["retry-after"]


def test_one_name_for_two_requests_at_once() -> None:
    with engine(texts=("x" * 40,), step_seconds=0.002) as (live, _), ThreadPoolExecutor(4) as pool:

        def named(_: int) -> httpx.Response:
            return httpx.post(live.url + TEXT, json=body(TEXT, max_tokens=40), headers={"x-request-id": "same"}, timeout=20, verify=False)

        answers = list(pool.map(named, range(4)))
        assert [answer.status_code for answer in answers] == [200] * 4
        assert {answer.headers["x-request-id"] for answer in answers} == {"same"}
        assert len({answer.json()["id"] for answer in answers}) == 4


def _leave(url: str, seconds: float, fields: dict[str, Any]) -> None:
    try:
        with httpx.Client(base_url=url, timeout=seconds, verify=False) as client, client.stream("POST", TEXT, json=fields) as response:
            for _ in itertools.islice(response.iter_raw(), int(seconds * 200)):
                pass
    except httpx.TimeoutException:
        pass


LEAVING: list[dict[str, Any]] = [{}, {"stream": True}, {"n": 3}, {"stream": True, "prompt": ["a", "b", "c"]}, {"prompt": "p" * 400}]


@pytest.mark.slow
def test_a_client_that_leaves_ends_its_request_within_two_steps(executor: str) -> None:
    step = 0.02
    with engine(executor, texts=("x" * 300,), step_seconds=step, scheduler={"max_num_batched_tokens": 16}) as (live, assembly):
        for num_left, fields in enumerate(LEAVING):
            _leave(live.url, 0.2, body(TEXT, **{"max_tokens": 100, **fields}))
            assert at_rest(assembly, 50 * step)
            assert assembly.client.stats().num_finished.get("abort", 0) > num_left


@pytest.mark.slow
def test_a_queued_request_whose_client_left_never_runs() -> None:
    """The model raises on an id of the queued prompt, so a run of it would count as an error."""
    one_seat = {"max_num_seqs": 1}
    with engine(texts=("x" * 60,), step_seconds=0.03, raise_on=ord("y"), scheduler=one_seat) as (live, assembly), ThreadPoolExecutor() as pool:
        long = pool.submit(live.http.post, TEXT, json=body(TEXT, max_tokens=60))
        assert eventually(lambda: assembly.client.stats().num_running == 1)
        _leave(live.url, 0.1, body(TEXT, prompt="y" * 50))
        assert eventually(lambda: assembly.client.stats().num_waiting == 0)
        assert not long.done()
        assert long.result().json()["choices"][0]["text"] == "x" * 60
        assert assembly.client.stats().num_finished.get("error", 0) == 0
        assert assembly.client.stats().num_finished["abort"] == 1


def test_clients_that_leave_at_random_leave_no_block(executor: str) -> None:
    rng = random.Random(1)
    with engine(executor, random=True, step_seconds=0.001, num_blocks=48, scheduler={"max_num_seqs": 4, "max_queued_requests": 64}) as (live, assembly):
        for _ in range(2):
            threads = [
                threading.Thread(
                    target=_leave,
                    args=(
                        live.url,
                        0.005 + rng.random() * 0.15,
                        body(TEXT, prompt="p" * rng.randrange(1, 60), n=rng.choice((1, 2)), stream=rng.random() < 0.5, ignore_eos=True),
                    ),
                )
                for _ in range(24)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert at_rest(assembly, 2.0)


def test_stopping_the_server_under_load_leaves_the_engine_clean(executor: str) -> None:
    with engine(executor, texts=("x" * 300,), step_seconds=0.005) as (_, assembly):
        with Live(assembly.client, shutdown_seconds=0.2) as other, ThreadPoolExecutor(6) as pool:
            fields = [body(TEXT, max_tokens=300, stream=streaming, n=2) for streaming in (False, True) * 3]
            running = [pool.submit(httpx.post, other.url + TEXT, json=one, timeout=20, verify=False) for one in fields]
            assert eventually(lambda: assembly.client.stats().num_running > 4)
            other.stop()
            answers = [future.result() for future in running]
        assert all("draining" in answer.text for answer in answers)
        assert at_rest(assembly)


def test_a_dead_engine_is_503_everywhere() -> None:
    config = {"model": {"source": "none", "use": "scripted", "options": {}}, "tokenizer": {"use": "bytes"}, "block_allocator": {"num_blocks": 64}}
    with assemble(config, frontends=[], progress=False) as assembly, Live(assembly.client) as live:
        assert live.http.get("/health").status_code == 200
        assembly.close()
        assert live.http.get("/health").status_code == 503
        response = live.http.post(TEXT, json=body(TEXT))
        assert response.status_code == 503
        assert check_error(response)["code"] == "engine_dead"
        assert live.http.get("/metrics").status_code == 200


def test_the_official_client_on_a_real_engine() -> None:
    with engine(texts=("Hello, world.",)) as (live, _), openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}], temperature=0, logprobs=True)
        assert answer.choices[0].message.content == "Hello, world."
        stream = client.completions.create(model=MODEL, prompt="hi", stream=True, temperature=0, max_tokens=5)
        assert "".join(chunk.choices[0].text for chunk in stream) == "Hello"
        began = time.monotonic()
        assert client.models.list().data[0].id == MODEL
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("options", [{"enable_thinking": [1]}, {"tojson": 1}, {"enable_thinking": {"a": "b" * 1000}}])
def test_a_wrong_template_option_is_refused_by_the_name_of_its_field(options: dict[str, Any]) -> None:
    with engine(texts=("x",)) as (live, _):
        response = live.http.post(CHAT, json=body(CHAT, chat_template_kwargs=options))
        assert response.status_code == 400
        assert check_error(response)["param"] == "chat_template_kwargs"
