"""Messages on their way to a chat template, and the fields that the official client knows: each is served, harmless or refused by name."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.bodies import ChatBody, CompletionBody, StreamOptions
from corekit_openai_http.errors import ApiError
from corekit_openai_http.fields import HARMLESS, UNSUPPORTED
from corekit_openai_http.jobs import chat_job, completion_job
from corekit_openai_http.messages import Message, read_messages
from http_live import MODEL, PlainClient
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionFunctionMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionToolMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat import (
    completion_create_params as chat_create_params,
)
from test_frontend_http_engine import CHAT, body, engine

from corekit.builtin.chat_program import ChatProgram

CLIENT = PlainClient()
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "sky", "far": [1, null]}'}}
READ_CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": {"at": "sky", "far": [1, None]}}}

READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"role": "developer", "content": "be"}, {"role": "system", "content": "be"}),
    ({"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, {"role": "system", "content": "a\nb"}),
    ({"role": "user", "content": "hi", "name": "bob"}, {"role": "user", "content": "hi", "name": "bob"}),
    ({"role": "assistant", "content": "a", "tool_calls": [], "annotations": [{"x": 1}]}, {"role": "assistant", "content": "a"}),
    ({"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "assistant", "content": "", "tool_calls": [READ_CALL]}),
    ({"role": "assistant", "tool_calls": [CALL | {"index": 0}]}, {"role": "assistant", "content": "", "tool_calls": [READ_CALL]}),
    (
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "not JSON"}},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "look", "arguments": "not JSON"}}]},
    ),
    ({"role": "assistant", "content": None, "refusal": "no"}, {"role": "assistant", "content": "no"}),
    (
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "a\nno"},
    ),
    (
        {"role": "assistant", "content": "a", "reasoning_content": "hm", "reasoning": "so"},
        {"role": "assistant", "content": "a", "reasoning_content": "hm", "reasoning": "so"},
    ),
    ({"role": "tool", "content": "blue", "tool_call_id": "call_9"}, {"role": "tool", "content": "blue", "tool_call_id": "call_9"}),
    (
        {"role": "tool", "content": [{"type": "text", "text": "blue"}], "tool_call_id": "x", "name": "look"},
        {"role": "tool", "content": "blue", "tool_call_id": "x", "name": "look"},
    ),
    ({"role": "function", "content": None, "name": "look"}, {"role": "tool", "content": "", "name": "look"}),
]


@pytest.mark.parametrize(("message", "read"), READ, ids=[str(index) for index in range(len(READ))])
def test_what_a_template_gets(message: dict[str, Any], read: dict[str, Any]) -> None:
    assert read_messages([message]) == (read,)


def test_a_result_is_named_by_the_call_it_answers() -> None:
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "blue"}]
    assert read_messages(talk)[2] == {"role": "tool", "content": "blue", "tool_call_id": "call_1", "name": "look"}


def test_a_template_writes_tool_calls_and_results() -> None:
    template = (
        "{% for m in messages %}[{{ m.role }}{{ ' ' ~ m.name if m.name }}]{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}{% endfor %}"
    )
    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "blue"}]
    written = ChatProgram(template).render(read_messages(talk), None, {})
    assert written == '[user]?[assistant]<look {"at": "sky", "far": [1, null]}>[tool look]blue'


@pytest.mark.parametrize("arguments", ["", "[1]", "5", '"x"', "{", '{"a": NaN}', "[" * 100_000, '{"a":' * 100_000, "\x00", '{"a": 1e999}', "nul"])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    call = {"function": {"name": "f", "arguments": arguments}}
    (read,) = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert read["tool_calls"][0]["function"]["arguments"] == arguments


def test_an_engine_reads_a_history_with_tools() -> None:
    talk: list[dict[str, Any]] = [{"role": "user", "content": "sky?"}]
    talk += [{"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "blue"}]
    with engine(texts=("fine",)) as (live, _):
        response = live.http.post(CHAT, json=body(CHAT, messages=talk, return_token_ids=True))
        assert response.status_code == 200, response.text
        assert bytes(response.json()["prompt_token_ids"]).decode() == "user: sky?\nassistant: \ntool: blue\nassistant:"
        for fields in ({"reasoning_effort": "low"}, {"documents": [{"title": "t"}]}):
            response = live.http.post(CHAT, json=body(CHAT, **fields))
            assert response.status_code == 400
            assert response.json()["error"]["param"] == next(iter(fields))


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
KEYS = st.sampled_from(["type", "text", "function", "name", "arguments", "id", "refusal"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"])},
    optional=dict.fromkeys(Message.__struct_fields__[1:], VALUES | st.text(max_size=4)) | {"extra": VALUES},
)
OF_TEMPLATES = {"role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}


@given(messages=st.lists(MESSAGES, max_size=3))
def test_generated_messages_are_read_or_refused_by_name(messages: list[dict[str, Any]]) -> None:
    error = None
    try:
        read = read_messages(messages)
    except ApiError as fault:
        error = fault
    if error is not None:
        assert error.status == 400
        assert (error.param or "").startswith("messages")
        return
    for message in read:
        assert set(message) <= OF_TEMPLATES
        assert isinstance(message["content"], str)
        assert message["role"] in ("system", "user", "assistant", "tool")


def _fields(*kinds: Any) -> set[str]:
    return {name for kind in kinds for name in get_type_hints(kind)}


CREATE = {
    CompletionBody: (completion_create_params.CompletionCreateParamsNonStreaming, completion_create_params.CompletionCreateParamsStreaming),
    ChatBody: (chat_create_params.CompletionCreateParamsNonStreaming, chat_create_params.CompletionCreateParamsStreaming),
}


@pytest.mark.parametrize("kind", CREATE)
def test_every_field_of_the_official_client_is_served_harmless_or_refused_by_name(kind: type) -> None:
    job = completion_job if kind is CompletionBody else chat_job
    needed: dict[str, Any] = {"model": MODEL} | ({"prompt": "hi"} if kind is CompletionBody else {"messages": [{"role": "user", "content": "hi"}]})
    known = _fields(*CREATE[kind])
    assert len(known) > 15
    for name in known:
        places = [name in kind.__struct_fields__, name in HARMLESS, name in UNSUPPORTED]
        assert places.count(True) == 1, name
        if name in HARMLESS:
            job({**needed, name: "anything"}, CLIENT.model, HttpOptions())
        if name in UNSUPPORTED:
            with pytest.raises(ApiError, match=f"^{name} is not supported by this server") as refused:
                job({**needed, name: {"un": "heard of"}}, CLIENT.model, HttpOptions())
            assert (refused.value.status, refused.value.param, refused.value.code) == (400, name, "unsupported_parameter")
            for neutral in UNSUPPORTED[name]:
                job({**needed, name: neutral}, CLIENT.model, HttpOptions())


def test_every_field_of_vllm_s_that_users_know_is_served_or_refused_by_name() -> None:
    served = """top_k min_p repetition_penalty min_tokens stop_token_ids include_stop_str_in_output ignore_eos skip_special_tokens bad_words allowed_token_ids
    prompt_logprobs truncate_prompt_tokens echo add_special_tokens priority request_id cache_salt return_token_ids return_tokens_as_token_ids stream_interval"""
    of_chat = "add_generation_prompt continue_final_message chat_template_kwargs documents reasoning_effort"
    refused = "structured_outputs thinking_token_budget session_id chat_template guided_json guided_regex guided_choice guided_grammar use_beam_search"
    assert set(served.split()) <= set(CompletionBody.__struct_fields__) & set(ChatBody.__struct_fields__)
    assert set(of_chat.split()) <= set(ChatBody.__struct_fields__)
    assert set(refused.split()) <= UNSUPPORTED.keys()


def test_no_field_is_in_two_places() -> None:
    served = set(CompletionBody.__struct_fields__) | set(ChatBody.__struct_fields__)
    assert not served & HARMLESS
    assert not served & UNSUPPORTED.keys()
    assert not HARMLESS & UNSUPPORTED.keys()


def test_every_option_of_streams_and_every_field_of_messages_is_known() -> None:
    assert _fields(ChatCompletionStreamOptionsParam) <= set(StreamOptions.__struct_fields__)
    kinds = (ChatCompletionAssistantMessageParam, ChatCompletionDeveloperMessageParam, ChatCompletionFunctionMessageParam, ChatCompletionSystemMessageParam)
    assert _fields(*kinds, ChatCompletionToolMessageParam, ChatCompletionUserMessageParam) <= set(Message.__struct_fields__)


@pytest.mark.parametrize("effort", get_args(get_args(get_type_hints(chat_create_params.CompletionCreateParamsBase)["reasoning_effort"])[0]))
def test_every_effort_of_the_official_client_reaches_the_template(effort: str) -> None:
    fields = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": effort}
    assert chat_job(fields, CLIENT.model, HttpOptions()).prompts[0].template["reasoning_effort"] == effort
