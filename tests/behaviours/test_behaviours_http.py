"""What the server refuses and how its streams end, with a neighbour that must not notice: on the whole engine."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from behaviours_rig import EXECUTORS, Job, ask, engine, eventually, run, served, until

from corekit.api import InvalidRequest, SamplingParams
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.compose.assembly import Assembly

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Q"}]
TEXT = "x" * 120


def body(path: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "temperature": 0, "max_tokens": 20, **({"prompt": "Q"} if path == COMPLETIONS else {"messages": HELLO}), **fields}


@contextmanager
def with_neighbour(executor: str, **given: Any) -> Iterator[tuple[httpx.Client, Assembly]]:
    """A stream runs from before the body until after it, and ends as if it were alone."""
    with served(executor, model="scripted", texts=(TEXT,), step_seconds=0.002, **given) as (http, assembly), ThreadPoolExecutor() as pool:
        neighbour: Future[httpx.Response] = pool.submit(http.post, COMPLETIONS, json=body(COMPLETIONS, max_tokens=None, stream=True) | {"max_tokens": 120})
        assert eventually(lambda: assembly.client.stats().num_running)
        yield http, assembly
        told = [json.loads(line[6:]) for line in neighbour.result().text.split("\n\n")[:-2]]
        assert "".join(chunk["choices"][0]["text"] for chunk in told) == TEXT


def check_refusal(response: httpx.Response, param: str | None) -> str:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param is None or param.split("[")[0] in error["message"] or (param == "messages" and "prompt" in error["message"])
    return str(error["message"])


BAD_IDS: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": [257]}, "prompt"),
    (COMPLETIONS, {"prompt": [65, 299]}, "prompt"),
    (COMPLETIONS, {"prompt": [300]}, "prompt"),
    (COMPLETIONS, {"prompt": [2**63]}, "prompt"),
    (COMPLETIONS, {"prompt": [[65], [299]]}, "prompt[1]"),
    *[
        (path, fields, next(iter(fields)))
        for path in (COMPLETIONS, CHAT)
        for fields in (
            {"stop_token_ids": [10**9], "min_tokens": 1},
            {"stop_token_ids": [257]},
            {"stop_token_ids": [-1]},
            {"logit_bias": {"300": 1}},
            {"logit_bias": {"-1": 1}},
            {"logit_bias": {"abc": 1}},
            {"logit_bias": {"257": 1}},
            {"allowed_token_ids": []},
            {"allowed_token_ids": [65, 257]},
            {"banned_token_ids": [299]},
            {"banned_token_ids": [65, 66], "allowed_token_ids": [65, 66]},
            {"bad_words": ["A"], "allowed_token_ids": [65]},
            {"min_tokens": 1, "allowed_token_ids": [256]},
        )
    ],
]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_ids_outside_the_vocabulary(executor: str) -> None:
    """The model is padded to 300 ids, the tokenizer has 257: those between have no meaning and are refused like those beyond."""
    with with_neighbour(executor, vocab_size=300) as (http, _):
        for path, fields, param in BAD_IDS:
            message = check_refusal(http.post(path, json=body(path, **fields)), param)
            wrong = next(iter(fields.values()))
            if param.startswith(("prompt", "stop")) and wrong != [2**63] and wrong != [[65], [299]]:
                assert str(wrong[-1]) in message and "256" in message
        assert http.post(COMPLETIONS, json=body(COMPLETIONS, prompt=[256, 0])).status_code == 200


@pytest.mark.parametrize("executor", EXECUTORS)
def test_ids_outside_the_vocabulary_in_python(executor: str) -> None:
    with engine(executor, model="scripted", vocab_size=300, texts=(TEXT,), step_seconds=0.002) as assembly:

        async def main() -> str:
            neighbour = asyncio.create_task(ask(assembly, Job("Q", SamplingParams(temperature=0, max_tokens=60))))
            await until(lambda: assembly.client.stats().num_running)
            for wrong in ([-1], [257], [65, 299], [300], [2**70]):
                with pytest.raises(InvalidRequest, match=f"prompt must hold token ids from 0 to 256, got {wrong[-1]} at index {len(wrong) - 1}"):
                    await ask(assembly, Job(wrong, SamplingParams()))
            for wrong in (10**9, -1, 257):
                with pytest.raises(InvalidRequest, match=f"stop_token_ids must hold token ids from 0 to 256, got {wrong} at index 1"):
                    await ask(assembly, Job("Q", SamplingParams(min_tokens=1, stop_token_ids=(5, wrong))))
            assert not neighbour.done()
            return (await neighbour)[0].text

        assert asyncio.run(main()) == TEXT[:60]


EMPTY: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": [""]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": ["", "hi"]}, "prompt[0]"),
    (COMPLETIONS, {"prompt": ["hi", ""]}, "prompt[1]"),
    (CHAT, {"messages": []}, "messages"),
]

NONE: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 9}, "n"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"min_tokens": 21}, "min_tokens"),
    ({"seed": 2**63}, "seed"),
    ({"stop": [""]}, "stop"),
]

SCHEMAS: list[Any] = [
    {"type": "json_object"},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": ""}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
    {"type": "json_schema", "json_schema": {"name": "a", "schema": {"$ref": "#/nowhere"}}},
    {"type": "regex", "regex": "(["},
    {"type": "text", "extra": 1},
    "text",
    {},
]


@pytest.mark.parametrize("executor", EXECUTORS)
def test_what_is_wrong_is_400_by_name_and_touches_nobody(executor: str) -> None:
    with with_neighbour(executor) as (http, assembly):
        for path, fields, param in EMPTY:
            for streaming in (False, True):
                check_refusal(http.post(path, json=body(path, stream=streaming, **fields)), param)
        for path in (COMPLETIONS, CHAT):
            for fields, param in NONE:
                check_refusal(http.post(path, json=body(path, **fields)), param)
            for number in ("NaN", "Infinity", "-Infinity", "1e999"):
                content = json.dumps(body(path, temperature=0.5)).replace("0.5", number)
                response = http.post(path, content=content, headers={"content-type": "application/json"})
                assert response.status_code == 400, (number, response.text)
            for schema in SCHEMAS:
                check_refusal(http.post(path, json=body(path, response_format=schema)), "response_format")
                good = http.post(path, json=body(path, response_format={"type": "text"}, max_tokens=3))
                assert good.status_code == 200, good.text
            for field in ("guided_json", "guided_regex", "guided_grammar", "guided_choice", "structured_outputs"):
                check_refusal(http.post(path, json=body(path, **{field: {"a": 1}})), field)
        assert assembly.client.stats().num_finished.get("error", 0) == 0


class Silent(BytesTokenizer):
    """A chat template that renders nothing."""

    def apply_chat_template(self, messages: Any, *, tools: Any = None, **options: Any) -> Any:
        chat = super().apply_chat_template(messages, tools=tools, **options)
        return type(chat)(text="", token_ids=())


def test_a_template_that_renders_nothing() -> None:
    with served(model="scripted", parts={"tokenizer": Silent()}) as (http, _):
        check_refusal(http.post(CHAT, json=body(CHAT)), "messages")


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_in_python_is_refused_before_it_is_queued(prompt: Any) -> None:
    with engine(model="scripted") as assembly:
        with pytest.raises(InvalidRequest, match="empty"):
            run(assembly, [Job(prompt, SamplingParams())])
        assert assembly.client.stats().num_steps == 0
        assert not assembly.client.stats().num_finished


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_limit_of_the_context_is_stated_with_the_numbers(path: str) -> None:
    """Limit, prompt and requested tokens, counted as the tokenizer counts them; at the limit it is answered."""
    with served(model="scripted", max_model_len=100, texts=(TEXT,)) as (http, _):
        rendered = 1 if path == COMPLETIONS else len("user: Q\nassistant:")
        for max_tokens in (100 - rendered + 1, 5000):
            message = check_refusal(http.post(path, json=body(path, max_tokens=max_tokens)), "max_tokens")
            for number in (100, rendered, max_tokens, rendered + max_tokens):
                assert f" {number} " in message
        answer = http.post(path, json=body(path, max_tokens=100 - rendered)).json()
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 100)
        long = {"prompt": "p" * 150} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "p" * 150}]}
        message = check_refusal(http.post(path, json=body(path, **long)), "prompt" if path == COMPLETIONS else "messages")
        assert " 100 " in message and f" {150 if path == COMPLETIONS else 149 + rendered} " in message


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_null_means_absent_at_every_depth(path: str) -> None:
    """What clients write for fields they have not set changes nothing."""
    nulls: dict[str, Any] = dict.fromkeys(("stop", "seed", "n", "top_p", "logprobs", "min_tokens", "logit_bias", "tools", "response_format", "user"))
    with served(model="scripted", texts=(TEXT,)) as (http, _):
        plain = http.post(path, json=body(path)).json()["choices"]
        assert http.post(path, json=body(path, **nulls)).json()["choices"] == plain
        streamed = http.post(path, json=body(path, stream=True, stream_options={"include_usage": None}))
        assert streamed.status_code == 200, streamed.text
        assert "usage" not in streamed.text
        if path == CHAT:
            messages = [{"role": "user", "content": "Q", "name": None, "tool_calls": None, "refusal": None}]
            assert http.post(path, json=body(path, messages=messages, chat_template_kwargs=None)).json()["choices"] == plain


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("at", [0, 1, 5, 9])
def test_a_stream_that_fails_says_so_and_never_looks_complete(executor: str, at: int) -> None:
    wrong = "0123456789"[at - 1] if at else "Q"
    with served(executor, model="scripted", texts=("0123456789",), raise_on=ord(wrong)) as (http, _):
        for path in (COMPLETIONS, CHAT):
            check_failure(http, path, at)


def check_failure(http: httpx.Client, path: str, at: int) -> None:
    whole = http.post(path, json=body(path))
    assert whole.status_code == 500
    error = whole.json()["error"]
    assert "scripted to fail" in error["message"]
    told = http.post(path, json=body(path, stream=True, stream_options={"include_usage": True}))
    assert "[DONE]" not in told.text
    if at == 0:
        assert (told.status_code, told.json()["error"]) == (500, error)
    else:
        *pieces, last = [json.loads(line.removeprefix("data: ")) for line in told.text.split("\n\n")[:-1]]
        assert last["error"] == error
        assert not any(choice["finish_reason"] for piece in pieces for choice in piece["choices"])
        text = "".join(choice["text"] if path == COMPLETIONS else choice["delta"].get("content", "") for piece in pieces for choice in piece["choices"])
        assert text == "0123456789"[:at]
    assert http.post(path, json=body(path, max_tokens=max(at, 1))).status_code == (200 if at else 500)
    assert http.get("/health").status_code == 200


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_stream_that_succeeds_ends_in_the_one_right_way(executor: str) -> None:
    with served(executor, model="scripted", texts=("0123456789",)) as (http, _):
        for path, usage, max_tokens in itertools.product((COMPLETIONS, CHAT), (None, False, True), (4, 20)):
            check_success(http, path, usage, max_tokens)


def check_success(http: httpx.Client, path: str, usage: bool | None, max_tokens: int) -> None:
    more = {} if usage is None else {"stream_options": {"include_usage": usage}}
    told = http.post(path, json=body(path, stream=True, n=2, max_tokens=max_tokens, **more)).text.split("\n\n")
    assert told[-2:] == ["data: [DONE]", ""]
    pieces = [json.loads(line.removeprefix("data: ")) for line in told[:-2]]
    if usage:
        last = pieces.pop()
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 2 * min(max_tokens, 11))
        assert all(piece["usage"] is None for piece in pieces)
    else:
        assert not any("usage" in piece for piece in pieces)
    ends = [(choice["index"], choice["finish_reason"]) for piece in pieces for choice in piece["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [(index, "length" if max_tokens == 4 else "stop") for index in (0, 1)]
    assert all(piece["choices"] for piece in pieces)


class Slow(BytesTokenizer):
    """A tokenizer that needs 0.4 seconds for a long text."""

    def encode(self, text: str, *, add_special: bool = True) -> Any:
        if len(text) > 2000:
            time.sleep(0.4)
        return super().encode(text, add_special=add_special)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_long_prompt_holds_up_nobody_while_it_is_tokenized(path: str) -> None:
    with served(model="scripted", max_model_len=4096, parts={"tokenizer": Slow()}) as (http, _), ThreadPoolExecutor() as pool:
        long = {"prompt": "p" * 9000} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "p" * 9000}]}
        waiting = pool.submit(http.post, path, json=body(path, **long))
        time.sleep(0.05)
        for _ in range(3):
            assert http.get("/health").status_code == 200
        assert http.post(COMPLETIONS, json=body(COMPLETIONS, max_tokens=1)).status_code == 200
        assert not waiting.done()
        assert waiting.result().status_code == 400
