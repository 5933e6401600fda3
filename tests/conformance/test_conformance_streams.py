"""A stream says what the whole answer says: text, logprobs, reasons, usage and ids, over a product of options on all three endpoints."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from answers import CHAT, COMPLETIONS, RESPONSES, Answer, Choice, read
from conformance_rig import CONTROL, FIRST_PIECE, PIECES, PiecesTokenizer, Server, served
from hypothesis import given, settings
from hypothesis import strategies as st

SCRIPT = (
    *b"Mars ",
    FIRST_PIECE + 2,
    FIRST_PIECE + 3,
    FIRST_PIECE,
    FIRST_PIECE + 1,
    CONTROL,
    FIRST_PIECE + 8,
    *"é".encode(),
    FIRST_PIECE + 4,
    FIRST_PIECE + 5,
    10,
)
OTHER = (*"🙂".encode()[:2], *b"bear", FIRST_PIECE + 6, *b"erver\n", 0xE4, *b"end")
TEXTS = tuple(b"".join(PIECES[id - FIRST_PIECE] if id >= FIRST_PIECE else bytes([id]) for id in script).decode(errors="replace") for script in (SCRIPT, OTHER))
VOCAB = PiecesTokenizer().vocab_size
SALTS = itertools.count()


@pytest.fixture(scope="module", params=["scripted", "random"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Answers that were written down, or random ids: broken characters everywhere, and other ones for each sample."""
    how = {"scripts": (SCRIPT, OTHER)} if request.param == "scripted" else {"random": True}
    with served(tokenizer=PiecesTokenizer(), vocab_size=VOCAB, seats=8, budget=24, **how) as server:
        yield server
        server.check_end()


def pieces_of(text: str) -> st.SearchStrategy[str]:
    spans = st.tuples(st.integers(0, len(text) - 1), st.integers(1, 9))
    return spans.map(lambda span: text[span[0] : span[0] + span[1]])


words = st.one_of(pieces_of(TEXTS[0]), pieces_of(TEXTS[1]), st.text("ab\n世é", min_size=1, max_size=3))
ids = st.integers(0, VOCAB - 1)
SAMPLING: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.7, 2]),
    "top_p": st.sampled_from([1, 0.5]),
    "top_k": st.sampled_from([0, 3]),
    "presence_penalty": st.sampled_from([-1, 1.5]),
    "frequency_penalty": st.sampled_from([-2, 0.5]),
    "repetition_penalty": st.sampled_from([0.9, 1.3]),
    "logit_bias": st.dictionaries(ids.map(str), st.sampled_from([-100, 5, 100]), max_size=3),
    "bad_words": st.lists(words, max_size=2),
    "allowed_token_ids": st.lists(ids, min_size=2, max_size=40, unique=True),
    "stop": st.one_of(words, st.lists(words, min_size=1, max_size=4)),
    "stop_token_ids": st.lists(ids, max_size=3),
    "min_tokens": st.integers(0, 6),
    "ignore_eos": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "stream_interval": st.integers(1, 5),
}
EXTRAS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 3),
    "prompt_logprobs": st.integers(0, 2),
    "return_token_ids": st.booleans(),
    "return_tokens_as_token_ids": st.booleans(),
    "truncate_prompt_tokens": st.integers(1, 4),
    "echo": st.booleans(),
}
prompts = st.one_of(
    st.sampled_from(["Q", "R", "Qü世", "a long prompt, longer than a step of the engine"]), st.lists(st.integers(0, 255), min_size=1, max_size=5)
)
messages = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer", "user", "assistant"]), "content": st.sampled_from(["Q", "xé", "R\n"])}),
    min_size=1,
    max_size=3,
)
ENDPOINTS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    COMPLETIONS: st.fixed_dictionaries(
        {"prompt": st.one_of(prompts, st.lists(prompts, min_size=1, max_size=3)), "max_tokens": st.integers(0, 30)},
        optional={**SAMPLING, **EXTRAS, "logprobs": st.integers(0, 3)},
    ),
    CHAT: st.fixed_dictionaries(
        {"messages": messages, "max_completion_tokens": st.integers(6, 30)},
        optional={**SAMPLING, **EXTRAS, "logprobs": st.booleans(), "top_logprobs": st.integers(0, 3)},
    ),
    RESPONSES: st.fixed_dictionaries(
        {"input": st.one_of(st.sampled_from(["Q", "R", "xé世"]), messages), "max_output_tokens": st.integers(6, 30)},
        optional={
            **{name: SAMPLING[name] for name in ("temperature", "top_p")},
            "top_logprobs": st.integers(0, 3),
            "include": st.sampled_from([[], ["message.output_text.logprobs"]]),
            "instructions": st.sampled_from(["be brief"]),
        },
    ),
}
requests = st.sampled_from(sorted(ENDPOINTS)).flatmap(lambda path: st.tuples(st.just(path), ENDPOINTS[path]))


def asked(server: Server, path: str, fields: dict[str, Any], stream: bool) -> Answer:
    more: dict[str, Any] = {"model": "scripted", **fields}
    if path != RESPONSES:
        more |= {"cache_salt": str(next(SALTS)), "seed": 5}
    if not stream:
        more.pop("stream_interval", None)  # of streams alone
    else:
        more |= {"stream": True} | ({} if path == RESPONSES else {"stream_options": {"include_usage": True}})
    return read(path, server.http.post(path, json=more))


def check_same(server: Server, path: str, fields: dict[str, Any]) -> Answer:
    if path == RESPONSES:
        fields = {**fields, "temperature": 0}
    whole, stream = asked(server, path, fields, False), asked(server, path, fields, True)
    assert whole.status in (200, 400), whole
    if several_prompts(fields) or path == RESPONSES:  # which of them finds the other's prefix is a matter of time
        for answer in (whole, stream):
            for details in ("prompt_tokens_details", "input_tokens_details"):
                (answer.usage or {}).pop(details, None)
    for answer in (whole, stream):
        answer.rest.pop("stream", None)
    assert stream == whole
    if whole.status == 200 and path != RESPONSES:
        check_usage(path, fields, whole)
    return whole


def several_prompts(fields: dict[str, Any]) -> bool:
    prompt = fields.get("prompt")
    return isinstance(prompt, list) and not isinstance(prompt[0], int)


def check_usage(path: str, fields: dict[str, Any], answer: Answer) -> None:
    """What the parts of one answer say of each other."""
    assert answer.usage is not None
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
    assert len(answer.choices) == fields.get("n", 1) * (len(fields["prompt"]) if several_prompts(fields) else 1)
    if fields.get("return_token_ids"):
        assert sum(len(choice.token_ids or ()) for choice in answer.choices.values()) == answer.usage["completion_tokens"]
    for choice in answer.choices.values():
        assert choice.finish_reason in ("stop", "length")
        check_logprobs(path, fields, choice)


def check_logprobs(path: str, fields: dict[str, Any], choice: Choice) -> None:
    if choice.logprobs is None or fields.get("echo"):
        return
    if choice.token_ids is not None:
        assert len(choice.logprobs["content" if path == CHAT else "tokens"]) == len(choice.token_ids)
    if path == COMPLETIONS:
        assert choice.logprobs["text_offset"] == sorted(choice.logprobs["text_offset"])
        return
    spelled = b"".join(bytes(entry["bytes"] or ()) for entry in choice.logprobs["content"]).decode(errors="replace")
    if choice.finish_reason == "length" and fields.get("skip_special_tokens") is False:
        assert spelled == choice.text


@settings(max_examples=15)
@given(request=requests)
def test_a_stream_says_what_the_whole_answer_says(server: Server, request: tuple[str, dict[str, Any]]) -> None:
    check_same(server, *request)


@pytest.mark.ci
@settings(max_examples=300)
@given(request=requests)
def test_a_stream_says_what_the_whole_answer_says_at_length(server: Server, request: tuple[str, dict[str, Any]]) -> None:
    check_same(server, *request)


EACH: list[tuple[str, dict[str, Any]]] = [
    (COMPLETIONS, {"n": 3, "temperature": 1}),
    (COMPLETIONS, {"prompt": ["Q", "R"], "logprobs": 2}),
    (COMPLETIONS, {"echo": True}),
    (COMPLETIONS, {"echo": True, "logprobs": 1}),
    (COMPLETIONS, {"echo": True, "logprobs": 1, "max_tokens": 0}),
    (COMPLETIONS, {"max_tokens": 0}),
    (COMPLETIONS, {"prompt_logprobs": 1}),
    (COMPLETIONS, {"stop": "gam"}),
    (COMPLETIONS, {"stop": "gamma", "include_stop_str_in_output": True, "min_tokens": 3}),
    (COMPLETIONS, {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": 0}),
    (COMPLETIONS, {"truncate_prompt_tokens": 2, "prompt": "abQ"}),
    (COMPLETIONS, {"stream_interval": 4}),
    (CHAT, {"n": 3, "logprobs": True, "top_logprobs": 2}),
    (CHAT, {"stop": ["beta gam"], "return_token_ids": True}),
    (CHAT, {"skip_special_tokens": False, "logprobs": True, "max_completion_tokens": 14}),
    (CHAT, {"echo": True, "prompt_logprobs": 1}),
    (CHAT, {"stream_interval": 3, "logprobs": True}),
    (RESPONSES, {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}),
    (RESPONSES, {"max_output_tokens": 3, "instructions": "x"}),
]


@pytest.mark.parametrize(("path", "fields"), EACH)
def test_each_option_is_answered_and_the_same_in_a_stream(server: Server, path: str, fields: dict[str, Any]) -> None:
    """So that what the product compares is answers, and not refusals."""
    limit = {RESPONSES: "max_output_tokens", CHAT: "max_completion_tokens"}.get(path, "max_tokens")
    prompt = {COMPLETIONS: {"prompt": "Q"}, CHAT: {"messages": [{"role": "user", "content": "Q"}]}, RESPONSES: {"input": "Q"}}[path]
    answer = check_same(server, path, {**prompt, "temperature": 0, limit: 24, **fields})
    assert answer.status == 200, answer.error
    assert answer.choices
