"""Fields of `/v1/responses`: what the page says of them, what becomes of input, and that no field of the official client is unknown."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.errors import ApiError
from corekit_openai_http.messages import MAX_MESSAGES
from corekit_openai_http.responses_body import CALLED, HARMLESS, LOGPROBS, UNSUPPORTED, ResponsesBody, ResponsesJob, responses_job
from http_live import MODEL, PlainClient
from http_page import section, table
from openai.types.responses.response_create_params import ResponseCreateParamsBase, ResponseCreateParamsStreaming

from corekit.api import InvalidRequest

OWN, OTHER = "Fields of `/v1/responses`", "Other fields of `/v1/responses`"
MODEL_FACTS = PlainClient().model
USER = {"role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": [1]}'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}


def ask(**fields: Any) -> ResponsesJob:
    return responses_job({"model": MODEL, "input": "hi", **fields}, MODEL_FACTS, HttpOptions())


def messages(given: Any, **fields: Any) -> list[dict[str, Any]]:
    return [dict(message) for message in ask(input=given, **fields).prompts[0].messages or ()]


def refused(**fields: Any) -> ApiError | InvalidRequest:
    with pytest.raises((ApiError, InvalidRequest)) as found:
        ask(**fields)
    return found.value


def test_every_field_of_the_official_client_is_served_or_named() -> None:
    fields = {*ResponseCreateParamsBase.__annotations__, *ResponseCreateParamsStreaming.__annotations__}
    assert fields <= {*ResponsesBody.__struct_fields__, *HARMLESS, *UNSUPPORTED}


def test_the_page_has_every_field() -> None:
    as_elsewhere = re.findall(r"`(\w+)`", section(OWN).partition("mean the same:")[2].partition(".\n")[0])
    assert {*table(OWN), *as_elsewhere} == set(ResponsesBody.__struct_fields__)
    assert {name: json.loads(cells[0].strip("`")) for name, cells in table(OTHER).items()} == {
        name: values[0] for name, values in UNSUPPORTED.items() if values
    }
    assert set(re.findall(r"`(\w+)`", section(OTHER).partition("any value:\n")[2])) == {name for name, values in UNSUPPORTED.items() if not values}
    harmless = re.search(r"whatever the value: (.*);", section(OWN))
    assert harmless is not None
    assert set(re.findall(r"`(\w+)`", harmless[1])) == HARMLESS
    assert str(MAX_MESSAGES) in table(OWN)["input"][1]


@pytest.mark.parametrize(("field", "default"), [(field, cells[0]) for field, cells in table(OWN).items() if cells[0] not in ("required", "`null`")])
def test_defaults(field: str, default: str) -> None:
    assert ask(**{field: json.loads(default.strip("`"))}) == ask()


@pytest.mark.parametrize(("field", "values"), [(field, cells[1]) for field, cells in table(OWN).items() if re.match(r"(integer|number) ", cells[1])])
def test_bounds(field: str, values: str) -> None:
    found = re.match(r"(integer|number) (from|above) (-?[\d.]+) to (\d+)", values)
    assert found is not None, values
    step = 1 if found[1] == "integer" else 1e-6
    least, most = json.loads(found[3]), int(found[4])
    for value in (least if found[2] == "from" else least + step, most):
        ask(include=[LOGPROBS], **{field: value})
    for value in (least - step if found[2] == "from" else least, most + step, "1", True):
        assert field in str(refused(include=[LOGPROBS], **{field: value}))


@pytest.mark.parametrize("name", sorted(UNSUPPORTED))
def test_what_is_refused_is_named(name: str) -> None:
    error = refused(**{name: {"some": "value"}})
    assert isinstance(error, ApiError)
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    for neutral in UNSUPPORTED[name]:
        assert ask(**{name: neutral}) == ask()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"include": [LOGPROBS, "reasoning.encrypted_content"]}, "include[1]"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}, "text.format"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: ""}}, "metadata"),
        ({"metadata": {"": ""}}, "metadata"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"metadata": {"k": 1}}, "metadata[...]"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"request_id": "a b"}, "request_id"),
        ({"chat_template_kwargs": {"add_generation_prompt": False}}, "chat_template_kwargs.add_generation_prompt"),
        ({"instruction": "x"}, "instruction"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"input": []}, "input"),
        ({"input": [{"role": "system", "content": "x"}]}, "input"),
        ({"input": [USER] * (MAX_MESSAGES + 1)}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"type": 1}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [USER, {"type": "web_search_call"}]}, "input[1].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [USER | {"status": "begun"}]}, "input[0].status"),
        ({"input": [USER | {"name": "x"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ({"input": [USER, OUTPUT]}, "input[1].call_id"),
        ({"input": [CALL | {"name": "x" * 257}]}, "input[0].name"),
        ({"input": [CALL | {"call_id": ""}]}, "input[0].call_id"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_values(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert isinstance(error, ApiError)
    assert (error.status, error.param) == (400, param)
    assert len(error.message) < 400
    assert not error.message.endswith(".")


def test_the_word_of_other_endpoints_leads_to_the_one_here() -> None:
    for name, word in CALLED.items():
        assert word in str(refused(**{name: 5}))
        assert word.partition(".")[0] in ResponsesBody.__struct_fields__
        assert name not in ResponsesBody.__struct_fields__


def test_words_of_the_engine_become_those_of_the_request() -> None:
    names = ask(include=[LOGPROBS], top_logprobs=0).names
    assert {name: names[name] for name in ("prompt", "messages", "max_tokens", "logprobs")} == {
        "prompt": "input",
        "messages": "input",
        "max_tokens": "max_output_tokens",
        "logprobs": "top_logprobs",
    }


def test_roles_and_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    said = [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}, {"type": "refusal", "refusal": "d"}]
    given = [
        {"role": "developer", "content": "first"},
        {"type": "message", "role": "user", "content": parts, "status": "completed", "id": "msg_1"},
        {"type": "message", "role": "assistant", "content": said, "status": "completed", "id": "msg_2", "phase": "final_answer"},
        {"role": "system", "content": "later"},
        USER,
    ]
    then = [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c\nd"},
        {"role": "system", "content": "later"},
        USER,
    ]
    assert messages(given) == [{"role": "system", "content": "first"}, *then]
    assert messages(given, instructions="zero") == [{"role": "system", "content": "zero\n\nfirst"}, *then]
    assert messages("hi", instructions="") == [USER]


def test_calls_and_their_outputs_are_history() -> None:
    second = CALL | {"call_id": "c2", "name": "g", "arguments": "not json"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "s"}], "content": [{"type": "reasoning_text", "text": "hm"}]}
    given = [USER, thought, CALL, second, OUTPUT, {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "x"}]}]
    assert messages(given) == [
        USER,
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "not json"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "f", "content": "done"},
        {"role": "tool", "tool_call_id": "c2", "name": "g", "content": "x"},
    ]
    for arguments in ('{"a":' * 70 + "1" + "}" * 70, "[" * 100_000, "[1]", ""):
        (call,) = messages([CALL | {"arguments": arguments}])[0]["tool_calls"]
        assert call["function"]["arguments"] == arguments, "what spells no object, or one too deep for a template, stays text"
    said = {"role": "assistant", "content": "let me see"}
    (_, called, _) = messages([USER, said, CALL, OUTPUT])
    assert (called["content"], len(called["tool_calls"])) == ("let me see", 1)
    assert messages([USER, thought, USER]) == [USER, USER], "a thought that nothing follows is no message"


@pytest.mark.parametrize(("status", "continues"), [("incomplete", True), ("in_progress", True), ("completed", False), (None, False)])
def test_an_unfinished_answer_at_the_end_is_continued(status: str | None, continues: bool) -> None:
    last = {"role": "assistant", "content": "Once upon", "status": status}
    template = dict(ask(input=[USER, last]).prompts[0].template)
    assert template == ({"add_generation_prompt": False, "continue_final_message": True} if continues else {"add_generation_prompt": True})
    assert ask(input=[USER, last, USER]).prompts[0].template == {"add_generation_prompt": True}


def test_nulls_are_absent() -> None:
    nothing = {name: None for name in ResponsesBody.__struct_fields__ if name not in ("model", "input")}
    assert ask(**{name: value for name, value in nothing.items() if value is not None}) == ask()
    assert ask(reasoning={"effort": None, "summary": None}) == ask()
    assert messages([USER | {"status": None, "phase": None}]) == [USER]
