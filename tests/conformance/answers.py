"""Answers of the three endpoints put into one form, whether they came whole or as a stream, so that both can be compared. Knows no test."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import httpx

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset", "content", "refusal")


@dataclass
class Choice:
    text: str = ""
    finish_reason: str | None = None
    stop_reason: Any = None
    logprobs: dict[str, list[Any]] | None = None
    token_ids: list[int] | None = None
    prompt_logprobs: Any = None
    prompt_token_ids: Any = None

    def add(self, given: dict[str, Any], text: str) -> None:
        assert self.finish_reason is None, "news after the end"
        self.text += text
        self.finish_reason = given.get("finish_reason")
        self.stop_reason = given.get("stop_reason")
        for name, items in (given.get("logprobs") or {}).items():
            if items is not None:
                assert name in _LISTS
                self.logprobs = self.logprobs or {}
                self.logprobs[name] = self.logprobs.get(name, []) + items
        if (token_ids := given.get("token_ids")) is not None:
            self.token_ids = (self.token_ids or []) + token_ids
        for name in ("prompt_logprobs", "prompt_token_ids"):
            if (value := given.get(name)) is not None:
                assert getattr(self, name) is None, f"{name} came twice"
                setattr(self, name, value)


@dataclass
class Answer:
    """What was said. `error` is the error object, of an answer that is none or that ended with one."""

    status: int
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    rest: dict[str, Any] = field(default_factory=dict)
    """Of the whole answer: what is neither an id nor a time."""


def read(path: str, response: httpx.Response) -> Answer:
    if response.headers["content-type"].startswith("text/event-stream"):
        return _streamed(path, response)
    value = response.json()
    if response.status_code != 200:
        return Answer(response.status_code, error=value["error"])
    if path == RESPONSES:
        return _response(value)
    answer = Answer(200, usage=value["usage"])
    for choice in value["choices"]:
        _add(answer, choice, choice["text"] if path == COMPLETIONS else choice["message"]["content"])
    _keep_rest(answer, value)
    return answer


def _add(answer: Answer, choice: dict[str, Any], text: str) -> None:
    answer.choices.setdefault(choice["index"], Choice()).add(choice, text)


def _keep_rest(answer: Answer, value: dict[str, Any]) -> None:
    for name, given in value.items():
        if name not in ("id", "created", "object", "choices", "usage") and given is not None:
            assert answer.rest.setdefault(name, given) == given, f"{name} changed"


def _streamed(path: str, response: httpx.Response) -> Answer:
    events = [block for block in response.text.split("\n\n") if block and not block.startswith(":")]
    if path == RESPONSES:
        return _responses_stream([json.loads(block.partition("data: ")[2]) for block in events])
    answer = Answer(200)
    ids = set()
    for block in events:
        assert answer.error is None, "events after an error"
        if block == "data: [DONE]":
            assert block is events[-1]
            break
        value = json.loads(block.removeprefix("data: "))
        if "error" in value:
            answer.error = value["error"]
            continue
        ids.add(value["id"])
        for choice in value["choices"]:
            _add(answer, choice, choice["text"] if path == COMPLETIONS else choice["delta"].get("content") or "")
        answer.usage = value.get("usage") or answer.usage
        _keep_rest(answer, value)
    assert len(ids) <= 1
    return answer


def _response(value: dict[str, Any]) -> Answer:
    answer = Answer(200, usage=value["usage"], error=value["error"])
    text, logprobs = "", []
    for item in value["output"]:
        assert item["type"] == "message"
        for part in item["content"]:
            text += part["text"]
            logprobs += part.get("logprobs") or []
    choice = answer.choices[0] = Choice(text=text, finish_reason=f"{value['status']} {value['incomplete_details']}")
    choice.logprobs = {"content": logprobs} if logprobs else None
    ignored = ("id", "created_at", "completed_at", "output", "usage", "error")
    answer.rest = {name: given for name, given in value.items() if name not in ignored and given is not None}
    return answer


def _of_event(entry: dict[str, Any]) -> dict[str, Any]:
    """A logprob as events have it: without bytes."""
    likely = [{name: one[name] for name in ("token", "logprob")} for one in entry["top_logprobs"]]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": likely}


def _responses_stream(events: list[dict[str, Any]]) -> Answer:
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"], kinds
    assert kinds[-1] in ("completed", "incomplete", "failed"), kinds
    answer = _response(events[-1]["response"])
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert "".join(event["delta"] for event in deltas) == answer.choices[0].text
    logprobs = [entry for event in deltas for entry in event.get("logprobs") or []]
    assert logprobs == [_of_event(entry) for entry in (answer.choices[0].logprobs or {}).get("content") or []]
    for event in events:
        if event["type"] == "response.output_text.done":
            assert event["text"] == answer.choices[0].text
    return answer
