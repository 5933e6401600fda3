"""`/tokenize`, `/detokenize`, the cards of models and `/load`: bodies of vLLM and of llama-server, limits, and what stays off the event loop."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
from corekit_openai_http.tokens import FIELDS, MAX_TEXT_CHARS, MAX_TOKENS, REFUSED
from http_live import MODEL, TOKENIZER, Live, PlainClient, check_error, eventually
from http_page import section, table

from corekit.api import Health, ModelFacts

USER = [{"role": "user", "content": "hé"}]
RENDERED = "user: hé\nassistant:"


class Watched:
    """The tokenizer of the other tests, which says from which threads it was used."""

    def __init__(self) -> None:
        self.threads: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(TOKENIZER, name)

    def encode(self, text: str, *, add_special: bool = True) -> Sequence[int]:
        self.threads.add(threading.current_thread().name)
        return [256, *TOKENIZER.encode(text)] if add_special else TOKENIZER.encode(text)


WATCHED = Watched()


class Loading(PlainClient):
    """An engine that is not there yet."""

    def health(self) -> Health:
        return Health(state="dead", reason="the model is still loading", loading=True)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    client = Loading(tokenizer=WATCHED)  # type: ignore[arg-type]
    with Live(client) as server:
        yield server


def post(live: Live, path: str, **fields: Any) -> dict[str, Any]:
    answer = live.http.post(path, json=fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def refused(live: Live, path: str, **fields: Any) -> dict[str, Any]:
    answer = live.http.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    return check_error(answer)


def test_a_prompt(live: Live) -> None:
    ids = list("hé".encode())
    assert post(live, "/tokenize", prompt="hé") == {"count": 4, "max_model_len": 512, "tokens": [256, *ids], "token_strs": None}
    assert post(live, "/tokenize", model=MODEL, prompt="hé", add_special_tokens=False) == {"count": 3, "max_model_len": 512, "tokens": ids, "token_strs": None}
    shown = post(live, "/tokenize", prompt="hé", add_special_tokens=False, return_token_strs=True)["token_strs"]
    assert shown == ["h", "\ufffd", "\ufffd"]
    assert post(live, "/tokenize", prompt="", add_special_tokens=False)["tokens"] == []


def test_messages_are_what_a_chat_would_be(live: Live) -> None:
    assert bytes(post(live, "/tokenize", messages=USER)["tokens"]).decode() == RENDERED
    assert bytes(post(live, "/tokenize", messages=USER, add_generation_prompt=False)["tokens"]).decode() == "user: hé\n"
    parts = [{"role": "user", "content": [{"type": "text", "text": "hé"}]}]
    assert post(live, "/tokenize", messages=parts, return_token_strs=True)["token_strs"][0] == "u"
    last = [*USER, {"role": "assistant", "content": "so"}]
    assert bytes(post(live, "/tokenize", messages=last, continue_final_message=True)["tokens"]).decode() == "user: hé\nassistant: so"


def test_a_body_of_llama_server(live: Live) -> None:
    assert post(live, "/tokenize", content="hé", parse_special=True) == {"tokens": list("hé".encode())}
    assert post(live, "/tokenize", content="h", add_special=True) == {"tokens": [256, 104]}
    pieces = post(live, "/tokenize", content="hé", with_pieces=True)["tokens"]
    assert pieces == [{"id": 104, "piece": "h"}, {"id": 195, "piece": [195]}, {"id": 169, "piece": [169]}]


def test_ids_become_their_text(live: Live) -> None:
    text = "A 世界 b"
    ids = post(live, "/tokenize", content=text)["tokens"]
    assert post(live, "/detokenize", tokens=ids) == post(live, "/detokenize", tokens=ids, model=MODEL) == {"prompt": text, "content": text}
    assert post(live, "/detokenize", tokens=[]) == {"prompt": "", "content": ""}
    assert post(live, "/detokenize", tokens=[0xE4, 0xB8])["content"] == "\ufffd"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "a", "content": "b"}, "content"),
        ({"prompt": "a", "messages": USER}, "messages"),
        ({"prompt": ["a"]}, "prompt"),
        ({"prompt": "a", "add_special": True}, "add_special"),
        ({"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"content": "a", "add_special_tokens": True}, "add_special_tokens"),
        ({"content": "a", "parse_special": False}, "parse_special"),
        ({"content": "a", "with_pieces": 1}, "with_pieces"),
        ({"messages": USER, "with_pieces": True}, "with_pieces"),
        ({"messages": USER, "add_special_tokens": True}, "add_special_tokens"),
        ({"messages": USER, "tools": [{"type": "function"}]}, "tools"),
        ({"messages": USER, "chat_template": "x"}, "chat_template"),
        ({"messages": USER, "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"messages": USER, "chat_template_kwargs": {"enable_thinking": True}}, "chat_template_kwargs"),
        ({"messages": USER, "add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"prompt": "a", "temperature": 1}, "temperature"),
        ({"prompt": "a" * (MAX_TEXT_CHARS + 1)}, "prompt"),
        ({"content": "a" * (MAX_TEXT_CHARS + 1)}, "content"),
        ({"prompt": "a" * MAX_TOKENS, "return_token_strs": True}, "return_token_strs"),
        ({"content": "a" * (MAX_TOKENS + 1), "with_pieces": True}, "with_pieces"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_tokenized_is_named(live: Live, fields: dict[str, Any], param: str) -> None:
    assert refused(live, "/tokenize", **fields)["param"] == param


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ([256], "tokens"),
        ([1, -1], "tokens"),
        ([2**70], "tokens"),
        ([0] * (MAX_TOKENS + 1), "tokens"),
        (["a"], "tokens[0]"),
        ([True], "tokens[0]"),
        ([1.5], "tokens[0]"),
        ("a", "tokens"),
        (None, "tokens"),
    ],
    ids=str,
)
def test_ids_outside_of_the_vocabulary_and_too_many(live: Live, given: Any, param: str) -> None:
    error = refused(live, "/detokenize", tokens=given)
    assert error["param"] == param
    assert len(error["message"]) < 200


def test_the_limits_themselves_are_served(live: Live) -> None:
    assert post(live, "/tokenize", content="a" * MAX_TEXT_CHARS)["tokens"] == [97] * MAX_TEXT_CHARS
    assert len(post(live, "/tokenize", content="a" * MAX_TOKENS, with_pieces=True)["tokens"]) == MAX_TOKENS
    assert post(live, "/detokenize", tokens=[97] * MAX_TOKENS)["prompt"] == "a" * MAX_TOKENS
    assert "frontend-under-test" not in WATCHED.threads
    assert WATCHED.threads


def test_broken_text_and_another_model(live: Live) -> None:
    for name in ("prompt", "content"):
        answer = live.http.post("/tokenize", content=json.dumps({name: "\ud800"}).encode(), headers={"content-type": "application/json"})
        assert answer.status_code == 400
        check_error(answer)
    for path, fields in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        answer = live.http.post(path, json={"model": "another", **fields})
        assert answer.status_code == 404
        assert check_error(answer)["code"] == "model_not_found"


def test_the_page() -> None:
    text = section("Tokens")
    assert table("Tokens").keys() == FIELDS.keys()
    for what, names in FIELDS.items():
        assert set(re.findall(r"`(\w+)`", table("Tokens")[what][0])) - {"true", "false"} == set(names)
    assert f"at most {MAX_TEXT_CHARS} characters" in text
    assert f"At most {MAX_TOKENS} ids" in text
    assert all(f"`{name}`" in text for name in REFUSED)


def test_cards_of_models() -> None:
    facts = ModelFacts(name="own", aliases=(), source="/somewhere/own", max_model_len=99, vocab_size=257, supports_logprobs=False, created=7)
    with Live(PlainClient(model=facts), served_model_names=("a", "b")) as live:
        first, second = live.http.get("/v1/models").json()["data"]
        assert [first["id"], second["id"], first["root"], first["parent"], first["max_model_len"], first["created"]] == ["a", "b", "own", None, 99, 7]
        (permission,) = first["permission"]
        assert (permission["object"], permission["allow_sampling"], permission["allow_logprobs"]) == ("model_permission", True, False)
        assert live.http.get("/v1/models/b").json() == second
        with openai.OpenAI(base_url=live.url + "/v1", api_key="key") as official:
            (card, _) = official.models.list()
            assert openai.types.Model.model_validate(card.to_dict(), strict=True).id == "a"
            assert (card.model_extra or {})["max_model_len"] == 99


def test_load_counts_what_is_being_answered() -> None:
    client = PlainClient(endless=True, step_seconds=0.001)
    with Live(client) as live:
        assert live.http.get("/load").json() == {"server_load": 0}
        with live.http.stream("POST", "/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True}) as answer:
            news = answer.iter_bytes()
            next(news)
            assert live.http.get("/load").json() == {"server_load": 1}
            news.close()
        assert eventually(lambda: live.http.get("/load").json() == {"server_load": 0})
