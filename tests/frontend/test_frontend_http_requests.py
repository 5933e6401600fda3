"""What the frontend accepts, refuses and hands to the engine, through real sockets and a plain client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from corekit_openai_http.app import OWN_PATHS
from corekit_openai_http.errors import ApiError
from corekit_openai_http.fields import HARMLESS, MAX_CONTAINERS, MAX_DEPTH, UNSUPPORTED, read_object
from http_live import MODEL, TOKENIZER, Live, PlainClient, check_error, eventually
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.api import Tokenizer

CLIENT = PlainClient()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with Live(CLIENT, max_body_bytes=64 * 1024, max_choices=32, max_answer_entries=2**16) as server:
        yield server


def complete(live: Live, **fields: Any) -> Any:
    return live.http.post("/v1/completions", json={"model": MODEL, "prompt": "hi", **fields})


def chat(live: Live, **fields: Any) -> Any:
    return live.http.post("/v1/chat/completions", json={"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "NaN"}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 17}, "n"),
        ({"n": 10**30}, "n"),
        ({"n": "2"}, "n"),
        ({"seed": 2**63}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a", 3]}, "stop[1]"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids[0]"),
        ({"stop_token_ids": "x"}, "stop_token_ids"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"stream": "yes"}, "stream"),
        ({"priority": 2**31}, "priority"),
        ({"priority": -(2**31)}, "priority"),
        ({"priority": False}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"wrong": 1}}, "stream_options.wrong"),
        ({"stream": True, "stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation"),
        ({"stream_interval": 65537}, "stream_interval"),
        ({"stream": True, "stream_interval": 0}, "stream_interval"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"echo": 1}, "echo"),
        ({"return_token_ids": "yes"}, "return_token_ids"),
        ({"return_tokens_as_token_ids": 0}, "return_tokens_as_token_ids"),
        ({"session_id": "s"}, "session_id"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"guided_json": {}}, "guided_json"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"request_id": "white space"}, "request_id"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ""}}}, "response_format"),
        ({"response_format": "text"}, "response_format"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"presence_penalty": False}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": "one"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"cache_salt": 5}, "cache_salt"),
        ({"cache_retention": -1}, "cache_retention"),
        ({"cache_retention": 604801}, "cache_retention"),
        ({"cache_retention": "1h"}, "cache_retention"),
        ({"prompt_cache_retention": "12h"}, "prompt_cache_retention"),
        ({"prompt_cache_retention": 3600}, "prompt_cache_retention"),
        ({"prompt_cache_retention": "24h", "cache_retention": 5}, "prompt_cache_retention"),
        ({"prompt_cache_options": {"ttl": "30m"}}, "prompt_cache_options"),
        ({"store": True}, "store"),
        ({"temprature": 1}, "temprature"),
        ({"model": 5}, "model"),
    ],
)
@pytest.mark.parametrize("ask", [complete, chat])
def test_a_wrong_value_is_refused_by_name(live: Live, ask: Any, fields: dict[str, Any], param: str) -> None:
    response = ask(live, **fields)
    error = check_error(response)
    assert response.status_code == 400
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert param.split("[", maxsplit=1)[0] in error["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt[0]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["hi", ""]}, "prompt[1]"),
        ({"prompt": ["hi", 5]}, "prompt[1]"),
        ({"prompt": [1, "hi"]}, "prompt[1]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": [[1, "x"]]}, "prompt[0][1]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [256]}, "prompt"),
        ({"prompt": ["hi", [256]]}, "prompt[1]"),
        ({"prompt": [65] * 512}, "prompt"),
        ({"prompt": ["hi", [65] * 512]}, "prompt[1]"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"text": "hi"}}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 33}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 11}, "n"),
        ({"prompt": ["a"] * 32, "max_tokens": 2**31 - 1, "logprobs": 4}, "logprobs"),
        ({"n": 16, "max_tokens": 200, "logprobs": 20}, "logprobs"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"documents": []}, "documents"),
        ({"add_special_tokens": 1}, "add_special_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 17}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 2, "n": 3}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 11, "prompt": ["a"] * 3}, "best_of"),
        ({"echo": True, "logprobs": 20, "n": 16, "stream": True, "prompt": "x" * 200}, "logprobs"),
        ({"prompt_logprobs": 20, "n": 16, "stream": True, "prompt": [65] * 200}, "prompt_logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_a_wrong_completion_is_refused_by_name(live: Live, fields: dict[str, Any], param: str) -> None:
    response = complete(live, **fields)
    assert response.status_code == 400
    assert check_error(response)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "tool", "tool_call_id": "x"}]}, "messages[0].content"),
        ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].name"),
        ({"messages": [{"role": "user", "content": "a", "tool_call_id": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": "a", "refusal": "x"}]}, "messages[0].refusal"),
        ({"messages": [{"role": "user", "content": "a", "name": 5}]}, "messages[0].name"),
        ({"messages": [{"role": "assistant"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "content": "a", "audio": {"id": "x"}}]}, "messages[0].audio"),
        ({"messages": [{"role": "user", "content": [{"type": "refusal", "refusal": "no"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "refusal"}]}]}, "messages[0].content[0].refusal"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "function": {"name": "f"}}]}]}, "messages[0].tool_calls[0].function.arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "custom", "custom": {}}]}]}, "messages[0].tool_calls[0].type"),
        ({"messages": [{"role": "assistant", "tool_calls": ["x"]}]}, "messages[0].tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}] * 129}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "user", "content": "a", "extra": 1}]}, "messages[0].extra"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"top_logprobs": 21, "logprobs": True}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"n": 16, "logprobs": True, "top_logprobs": 20}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"reasoning_effort": "very"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "low"}}, "chat_template_kwargs.reasoning_effort"),
        ({"documents": [{"title": 5}]}, "documents[0][...]"),
        ({"add_special_tokens": True}, "add_special_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"add_generation_prompt": True}}, "chat_template_kwargs.add_generation_prompt"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"prompt": "hi"}, "prompt"),
    ],
)
def test_a_wrong_chat_is_refused_by_name(live: Live, fields: dict[str, Any], param: str) -> None:
    response = chat(live, **fields)
    assert response.status_code == 400
    assert check_error(response)["param"] == param


@pytest.mark.parametrize("at", [{}, {"messages": [{"role": "user", "content": "x"}]}, {"stream": True, "stream_options": {}}])
def test_a_long_unknown_field_is_cut_in_its_error(live: Live, at: dict[str, Any]) -> None:
    inner = at["messages"][0] if "messages" in at else at.get("stream_options", at)
    inner["max_tokens" * 3000] = 1
    began = time.monotonic()
    response = chat(live, **at)
    assert time.monotonic() - began < 1
    assert response.status_code == 400
    error = check_error(response)
    assert error["param"].endswith("max_tokensmax_tok...")
    assert len(error["param"]) < 80
    assert len(error["message"]) < 160


@pytest.mark.parametrize("ask", [complete, chat])
def test_null_neutral_and_harmless_fields_change_nothing(live: Live, ask: Any) -> None:
    values: dict[str, Any] = {name: neutral[0] for name, neutral in UNSUPPORTED.items() if neutral}
    values |= {name: None for name, neutral in UNSUPPORTED.items() if not neutral}
    values |= {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "service_tier": "auto", "prompt_cache_key": "k", "verbosity": "low"}
    values |= {"parallel_tool_calls": True}
    assert values.keys() >= HARMLESS
    values |= {"n": None, "temperature": None, "stop": None, "stream": None, "max_tokens": None, "logprobs": None, "unknown": None, "stream_options": None}
    response = ask(live, **values)
    assert response.status_code == 200, response.text
    assert CLIENT.seen[-1][2].temperature == 1.0


def test_fields_reach_the_engine(live: Live) -> None:
    fields = {"temperature": 0, "top_k": 5, "top_p": 0.5, "min_p": 0.1, "seed": 0, "min_tokens": 2, "max_tokens": 9, "stop": "x", "stop_token_ids": [7]}
    flags = {"include_stop_str_in_output": True, "ignore_eos": True, "skip_special_tokens": False, "n": 2, "best_of": 2}
    assert complete(live, **fields, **flags).status_code == 200
    _, prompt, params = CLIENT.seen[-1]
    assert prompt.text == "hi"
    assert (params.temperature, params.top_k, params.top_p, params.min_p, params.seed) == (0.0, 5, 0.5, 0.1, 0)
    assert (params.min_tokens, params.max_tokens, params.stop, params.stop_token_ids) == (2, 9, ("x",), (7,))
    assert params.include_stop_str_in_output
    assert params.ignore_eos
    assert not params.skip_special_tokens
    assert params.n == 2


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize(
    ("fields", "salt", "retention"),
    [
        ({}, None, 0),
        ({"cache_salt": None, "cache_retention": None, "prompt_cache_retention": None}, None, 0),
        ({"cache_salt": "tenant-é", "cache_retention": 90}, "tenant-é", 90),
        ({"cache_salt": "x" * 1024, "cache_retention": 604800}, "x" * 1024, 604800),
        ({"prompt_cache_retention": "24h"}, None, 86400),
        ({"prompt_cache_retention": "in_memory", "prompt_cache_key": "k"}, None, 0),
    ],
)
def test_the_engine_hears_of_the_cache(live: Live, ask: Any, fields: dict[str, Any], salt: str | None, retention: float) -> None:
    response = ask(live, **fields)
    assert response.status_code == 200, response.text
    params = CLIENT.seen[-1][2]
    assert (params.cache_salt, params.cache_retention) == (salt, retention)


def test_defaults_of_max_tokens(live: Live) -> None:
    complete(live)
    assert CLIENT.seen[-1][2].max_tokens == 16
    chat(live)
    assert CLIENT.seen[-1][2].max_tokens is None
    chat(live, max_tokens=5, max_completion_tokens=7)
    assert CLIENT.seen[-1][2].max_tokens == 7
    chat(live, max_tokens=5)
    assert CLIENT.seen[-1][2].max_tokens == 5


@pytest.mark.parametrize("ask", [complete, chat])
@pytest.mark.parametrize(("fields", "priority"), [({}, 0), ({"priority": None}, 0), ({"priority": -3}, -3), ({"priority": 2**31 - 1}, 2**31 - 1)])
def test_the_engine_hears_of_the_priority(live: Live, ask: Any, fields: dict[str, Any], priority: int) -> None:
    assert ask(live, **fields).status_code == 200
    assert CLIENT.priorities[-1] == priority


def test_messages_reach_the_engine_as_roles_and_text(live: Live) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    previous = {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "annotations": [], "audio": None}
    response = chat(live, messages=[{"role": "developer", "content": "be"}, {"role": "user", "content": parts}, previous], chat_template_kwargs={"x": 1})
    assert response.status_code == 200, response.text
    prompt = CLIENT.seen[-1][1]
    assert prompt.messages == ({"role": "system", "content": "be"}, {"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"})
    assert prompt.template == {"add_generation_prompt": True, "x": 1}
    chat(live, continue_final_message=True)
    assert CLIENT.seen[-1][1].template == {"add_generation_prompt": False, "continue_final_message": True}


def test_prompts_as_text_ids_and_lists(live: Live) -> None:
    for prompt, count in (("hi", 1), ([104, 105], 1), (["hi", "ho"], 2), ([[1], [2, 3], "x"], 3)):
        response = complete(live, prompt=prompt, n=2)
        assert response.status_code == 200, response.text
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(2 * count))
        assert [choice["text"] for choice in choices] == ["hello0", "hello1"] * count


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b"null", 400, "invalid_json"),
        (b'{"model": NaN}', 400, "invalid_json"),
        (b'{"model": "\xff"}', 400, "invalid_json"),
        (b'{"model": "\\ud800"}', 400, "invalid_json"),
        (b'\xef\xbb\xbf{"model": "tiny"}', 400, "invalid_json"),
        (b'{"n": ' + b"9" * 5000 + b"}", 400, "invalid_json"),
        (b'{"temperature": 1e999}', 400, "invalid_json"),
        (b"[" * 60000, 400, "json_too_deep"),
        (b'{"metadata": ' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", 400, "json_too_deep"),
        (b"{}", 400, "missing_required_parameter"),
        (b'{"model": "nope", "prompt": "x"}', 404, "model_not_found"),
        (b'{"model": "tiny", "prompt": "' + b"x" * 70000 + b'"}', 413, "request_too_large"),
    ],
)
def test_malformed_bodies(live: Live, content: bytes, status: int, code: str) -> None:
    response = live.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status
    assert check_error(response)["code"] == code


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 17}, "n must be an integer from 1 to 16, got 17"),
        ({"n": "17"}, "n has a wrong value: expected integer or null, got string"),
        ({"temperature": True}, "temperature has a wrong value: expected number or null, got boolean"),
        ({"stop": 0.5}, "stop has a wrong value: expected string or array or null, got number"),
        ({"prompt": {}}, "prompt has a wrong value: expected string or array, got object"),
        ({"prompt": [["a"]]}, "prompt[0][0] has a wrong value: expected integer, got string"),
        ({"prompt": ["a", 1]}, "prompt[1] must be a string or an array of token ids"),
        ({"model": "x" * 99}, f"The model '{'x' * 57}...' does not exist here. This server has: {MODEL}"),
        (
            {"prompt_cache_retention": "1h"},
            'prompt_cache_retention must be "in_memory" or "24h", got \'1h\'. For any other time use cache_retention, in seconds',
        ),
        ({"temprature": 1}, "temprature is not a field that this server knows. Did you mean temperature?"),
        ({"zzz": 1}, "zzz is not a field that this server knows"),
    ],
)
def test_messages_use_the_words_of_json(live: Live, fields: dict[str, Any], message: str) -> None:
    assert check_error(complete(live, **fields))["message"] == message


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'{"a":[]},', b'"\\\\",[],"\\"",'])
def test_a_body_of_very_many_arrays_is_not_decoded(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    def decoded(body: bytes) -> None:
        raise AssertionError("it was decoded")

    content = b'{"metadata": [' + piece * (MAX_CONTAINERS + 1) + b"[]]}"
    monkeypatch.setattr("msgspec.json.decode", decoded)
    with pytest.raises(ApiError, match=f"at most {MAX_CONTAINERS} are allowed") as refused:
        read_object(content)
    assert (refused.value.status, refused.value.code) == (400, "json_too_many_values")


def test_brackets_in_text_and_many_ids_are_no_reason_to_refuse() -> None:
    text = '[{\\"' * 2 * MAX_CONTAINERS
    lists = [[[index, 2, 3] for index in range(MAX_CONTAINERS // 2)]]
    for fields in ({"prompt": text}, {"prompt": lists}, {"prompt": [[1] * 2048] * 2048}, {"messages": [{"role": "user", "content": text}] * 3}):
        assert read_object(json.dumps(fields).encode()) == fields


@pytest.mark.parametrize("content", [b"", b" \r\n"])
def test_an_empty_body_is_called_empty(live: Live, content: bytes) -> None:
    response = live.http.post("/v1/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert check_error(response)["message"] == "The body is empty; send a JSON object"


def test_a_wrong_route_or_method_is_told_the_right_ones(live: Live) -> None:
    routes = ", ".join(OWN_PATHS)
    for path, shown in (("/v1/embeddings", "/v1/embeddings"), ("/" + "x" * 99, "/" + "x" * 56 + "...")):
        assert check_error(live.http.get(path))["message"] == f"This server has no route {shown}. Its routes: {routes}"
    for path, method, allowed in (("/v1/completions", "GET", "POST"), ("/health", "POST", "GET, HEAD"), ("/v1/models/x", "DELETE", "GET, HEAD")):
        response = live.http.request(method, path)
        assert response.status_code == 405
        assert response.headers["allow"] == allowed
        assert check_error(response)["message"] == f"{path} takes {allowed}, not {method}"


def test_answers_within_their_bounds_are_given(live: Live) -> None:
    many = ["a"] * 32
    for fields in ({"prompt": many}, {"prompt": many[:2], "n": 16}, {"n": 16, "max_tokens": 186, "logprobs": 20}, {"prompt": many, "max_tokens": 9999}):
        assert complete(live, **fields).status_code == 200
    assert complete(live, n=16, max_tokens=512, logprobs=20, stream=True).status_code == 200
    with Live(CLIENT, max_answer_entries=1024) as small:
        for field, asked in (("max_tokens", {"max_tokens": 400}), ("max_completion_tokens", {"max_completion_tokens": 400}), ("max_tokens", {})):
            response = chat(small, n=3, **asked)
            assert response.status_code == 400
            assert check_error(response)["param"] == field


class Asked:
    """A tokenizer that notes whose bytes are asked for; its decoders, which belong to the engine, ask the one behind it."""

    def __init__(self, tokenizer: Tokenizer, token_bytes: Callable[[int], bytes]) -> None:
        self._tokenizer = tokenizer
        self.token_bytes = token_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def test_large_bodies_and_large_answers_do_not_hold_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take long is done in another thread than the loop's; the loop's is seen in `generate`."""
    client = PlainClient(reply="x" * 300)
    threads: dict[str, set[str]] = {"read": set(), "token": set()}

    def note(what: str, call: Any) -> Any:
        def noted(*given: Any) -> Any:
            threads[what].add(threading.current_thread().name)
            return call(*given)

        return noted

    monkeypatch.setattr("corekit_openai_http.exchange.read_object", note("read", read_object))
    client.tokenizer = Asked(TOKENIZER, note("token", TOKENIZER.token_bytes))
    with Live(client) as live:
        for ask in (complete, chat):
            logprobs = {"logprobs": 20} if ask is complete else {"logprobs": True, "top_logprobs": 20}
            assert ask(live, **logprobs, max_tokens=2).status_code == 200
            assert threads == {"read": {"frontend-under-test"}, "token": {"frontend-under-test"}}
            threads["read"].clear()
            threads["token"].clear()
            response = ask(live, **logprobs, max_tokens=300, n=2, user="u" * 300_000)
            assert [len(choice["text" if ask is complete else "message"]) > 0 for choice in response.json()["choices"]] == [True, True]
            assert threads["read"]
            assert threads["token"]
            assert "frontend-under-test" not in threads["read"] | threads["token"]
            assert ask(live, user="[" * 300_000, n=0).status_code == 400
            threads["read"].clear()
            threads["token"].clear()


def test_a_body_without_length_is_limited_while_it_is_read(live: Live) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"model": "tiny", "prompt": "'
        for _ in range(100):
            yield b"x" * 4096

    response = live.http.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    check_error(response)


def test_paths_methods_and_types_that_do_not_exist(live: Live) -> None:
    for method, path, status in [
        ("GET", "/", 404),
        ("GET", "/v1/embeddings", 404),
        ("GET", "/v1/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/health/", 404),
        ("OPTIONS", "/v1/chat/completions", 405),
        ("GET", "/v1/models/none", 404),
    ]:
        response = live.http.request(method, path)
        assert response.status_code == status, (method, path)
        check_error(response)
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = live.http.post("/v1/completions", content=b"{}", headers={"content-type": kind})
        assert response.status_code == 415
        check_error(response)
    assert live.http.post("/v1/completions", content=b"{}", headers={"content-type": "Application/JSON; charset=utf-8"}).status_code == 400


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3), max_leaves=6)
KNOWN = ("model", "prompt", "messages", "n", "temperature", "top_p", "top_k", "stop", "stream", "stream_options", "seed", "logprobs")
NAMES = st.sampled_from(sorted({*UNSUPPORTED, *HARMLESS, *KNOWN})) | st.text(max_size=5)


@settings(max_examples=150)
@given(path=st.sampled_from(["/v1/completions", "/v1/chat/completions"]), start=st.booleans(), fields=st.dictionaries(NAMES, VALUES, max_size=5))
def test_generated_bodies_get_an_answer_or_an_error_in_form(live: Live, path: str, start: bool, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, "prompt": "x"} if path == "/v1/completions" else {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    response = live.http.post(path, json={**(body if start else {}), **fields})
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        assert response.status_code in (400, 404)
        check_error(response)
    assert eventually(lambda: not CLIENT.alive)


@settings(max_examples=100)
@given(content=st.binary(max_size=60) | st.text('{}[]":,0.e-tnl', max_size=40).map(str.encode))
def test_generated_bytes_get_an_error_in_form(live: Live, content: bytes) -> None:
    response = live.http.post("/v1/chat/completions", content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    check_error(response)


def test_models(live: Live) -> None:
    listed = live.http.get("/v1/models").json()
    assert listed["object"] == "list"
    assert [card["id"] for card in listed["data"]] == [MODEL], "a name that requests may use as well is not a second model"
    card = live.http.get("/v1/models/other/alias").json()
    assert len(card.pop("permission")) == 1
    assert card == {
        "id": "other/alias",
        "object": "model",
        "created": 1,
        "owned_by": "corekit",
        "root": MODEL,
        "parent": None,
        "max_model_len": 512,
    }
    assert complete(live, model="other/alias").json()["model"] == "other/alias"
    assert json.loads(live.http.get("/version").text)["version"]
