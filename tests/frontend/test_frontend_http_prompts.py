"""What answers show of their prompts and of tokens: echo, logprobs of prompts, ids; and what is drawn beside what is shown."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from corekit_openai_http.prompt_part import PromptPart
from corekit_openai_http.shown import Shown
from http_live import TOKENIZER, Live, PlainClient, check_error, events
from test_frontend_http_engine import CHAT, TEXT, at_rest, body, engine
from test_frontend_http_requests import Asked

from corekit.api import RequestOutput, Tokenizer, WeightSource
from corekit.builtin.hf_tokenizer import HfTokenizer

PROMPT = "say: ä世"
BYTES = PROMPT.encode()
NAMES = ["s", "a", "y", ":", " ", "bytes:\\xc3", "bytes:\\xa4", "bytes:\\xe4", "bytes:\\xb8", "bytes:\\x96"]
PLACES = [0, 1, 2, 3, 4, 5, 5, 6, 6, 6]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with engine(texts=("alpha beta",)) as (server, _):
        yield server


@pytest.fixture(scope="module")
def random() -> Iterator[Live]:
    with engine(random=True) as (server, assembly):
        yield server
        assert at_rest(assembly)


def whole(live: Live, path: str, **fields: Any) -> dict[str, Any]:
    response = live.http.post(path, json=body(path, **fields))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def chunks(live: Live, path: str, **fields: Any) -> list[dict[str, Any]]:
    response = live.http.post(path, json=body(path, stream=True, **fields))
    assert response.status_code == 200, response.text
    found = events(response.text)
    assert found[-1] == "[DONE]"
    return [json.loads(event) for event in found[:-1]]


def joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """One choice of completions, put together from its pieces; what is said once may come in one of them alone."""
    made: dict[str, Any] = {"text": "", "logprobs": None}
    for piece in pieces:
        made["text"] += piece["text"]
        made["finish_reason"] = piece["finish_reason"]
        for name, items in (piece["logprobs"] or {}).items():
            made["logprobs"] = made["logprobs"] or {}
            made["logprobs"][name] = made["logprobs"].get(name, []) + items
        if "token_ids" in piece:
            made["token_ids"] = made.get("token_ids", []) + piece["token_ids"]
        for name in {"prompt_logprobs", "prompt_token_ids", "stop_reason"} & piece.keys():
            assert name not in made
            made[name] = piece[name]
    return made


def check_stream_is_the_same(live: Live, **fields: Any) -> dict[str, Any]:
    """The answer, which a stream gives too."""
    answer = whole(live, TEXT, **fields)
    pieces: dict[int, list[dict[str, Any]]] = {}
    streamed = chunks(live, TEXT, **fields, stream_options={"include_usage": True})
    for chunk in streamed:
        for choice in chunk["choices"]:
            pieces.setdefault(choice["index"], []).append(choice)
    uncached = {"prompt_tokens_details": None}  # the second time some of the prompt may be cached
    assert streamed[-1]["usage"] | uncached == answer["usage"] | uncached
    for choice in answer["choices"]:
        assert {"index": choice["index"], **joined(pieces[choice["index"]])} == choice
    return answer


@pytest.mark.parametrize("prompt", [PROMPT, list(BYTES)], ids=["text", "ids"])
def test_echo_begins_with_the_prompt(live: Live, prompt: Any) -> None:
    (choice,) = check_stream_is_the_same(live, prompt=prompt, echo=True)["choices"]
    assert (choice["text"], choice["finish_reason"]) == (PROMPT + "alpha beta", "stop")
    assert choice["logprobs"] is None


@pytest.mark.parametrize("prompt", [PROMPT, list(BYTES)], ids=["text", "ids"])
@pytest.mark.parametrize("top", [0, 2])
def test_echo_with_logprobs_tells_those_of_the_prompt(live: Live, prompt: Any, top: int) -> None:
    answer = check_stream_is_the_same(live, prompt=prompt, echo=True, logprobs=top)
    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [*NAMES, *"alpha beta", ""]
    assert logprobs["text_offset"] == [*PLACES, *range(7, 7 + len("alpha beta") + 1)]
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert all(isinstance(value, float) and value <= 0 for value in logprobs["token_logprobs"][1:])
    assert all(len(shown) in (max(top, 1), top + 1) for shown in logprobs["top_logprobs"][1:])
    for name, value, shown in list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))[1:]:
        assert shown[name] == value
    assert answer["usage"]["prompt_tokens"] == len(BYTES)


def test_logprobs_of_the_prompt_are_those_of_drawing_it(random: Live) -> None:
    """What was drawn once is sent as a prompt: each of its tokens has the logprob that it was drawn with."""
    drawn = whole(random, TEXT, prompt=[65], logprobs=1, max_tokens=12, ignore_eos=True, return_token_ids=True)["choices"][0]
    prompt = [65, *drawn["token_ids"]]
    echoed = whole(random, TEXT, prompt=prompt, echo=True, logprobs=1, max_tokens=0)["choices"][0]["logprobs"]
    assert echoed["token_logprobs"][1:] == pytest.approx(drawn["logprobs"]["token_logprobs"], abs=1e-5)
    assert echoed["tokens"][1:] == drawn["logprobs"]["tokens"]
    listed = whole(random, TEXT, prompt=prompt, prompt_logprobs=0, max_tokens=0)["choices"][0]["prompt_logprobs"]
    assert listed[0] is None
    assert [entry[str(token)]["logprob"] for token, entry in zip(prompt[1:], listed[1:], strict=True)] == echoed["token_logprobs"][1:]


@pytest.mark.parametrize("top", [0, 3])
def test_prompt_logprobs_of_a_completion_stand_in_each_choice(random: Live, top: int) -> None:
    answer = check_stream_is_the_same(random, prompt=["abc", [65, 66]], n=2, prompt_logprobs=top, max_tokens=3, seed=5, temperature=1)
    assert len(answer["choices"]) == 4
    for choice, prompt in zip(answer["choices"], [b"abc", b"abc", b"AB", b"AB"], strict=True):
        first, *rest = choice["prompt_logprobs"]
        assert first is None
        for token, entry in zip(prompt[1:], rest, strict=True):
            assert len(entry) in ({top, top + 1} if top else {1})
            assert entry[str(token)]["decoded_token"] == chr(token)
            ranked = sorted((given for given in entry.values() if "rank" in given), key=lambda given: given["rank"])
            assert [given["rank"] for given in ranked] == list(range(1, top + 1))
            assert [given["logprob"] for given in ranked] == sorted((given["logprob"] for given in ranked), reverse=True)


def test_prompt_logprobs_of_a_chat_come_once(random: Live) -> None:
    answer = whole(random, CHAT, prompt_logprobs=1, return_token_ids=True, max_tokens=2, n=2)
    assert len(answer["prompt_logprobs"]) == len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    assert bytes(answer["prompt_token_ids"]) == b"user: Q\nassistant:"
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [2, 2]
    first, *rest = chunks(random, CHAT, prompt_logprobs=1, return_token_ids=True, max_tokens=2, n=2)
    assert (first["prompt_logprobs"], first["prompt_token_ids"]) == (answer["prompt_logprobs"], answer["prompt_token_ids"])
    assert not any({"prompt_logprobs", "prompt_token_ids"} & chunk.keys() for chunk in rest)
    for index, choice in enumerate(answer["choices"]):
        pieces = [piece for chunk in rest for piece in chunk["choices"] if piece["index"] == index]
        assert [token for piece in pieces for token in piece.get("token_ids", [])] == choice["token_ids"]


def test_two_widths_of_logprobs_do_not_mix(random: Live) -> None:
    (choice,) = check_stream_is_the_same(random, prompt="abc", echo=True, logprobs=1, prompt_logprobs=4, max_tokens=2)["choices"]
    assert all(len(shown) <= 2 for shown in choice["logprobs"]["top_logprobs"][1:])
    assert all(len(entry) in (4, 5) for entry in choice["prompt_logprobs"][1:])
    (choice,) = check_stream_is_the_same(random, prompt="abc", echo=True, logprobs=4, prompt_logprobs=1, max_tokens=2)["choices"]
    assert all(len(shown) in (4, 5) for shown in choice["logprobs"]["top_logprobs"][1:])
    assert all(len(entry) in (1, 2) for entry in choice["prompt_logprobs"][1:])


@pytest.mark.parametrize("fields", [{}, {"echo": True}, {"echo": True, "logprobs": 1}, {"logprobs": 1}, {"n": 3, "echo": True}, {"best_of": 2}])
def test_no_new_token(live: Live, fields: dict[str, Any]) -> None:
    answer = check_stream_is_the_same(live, prompt=PROMPT, max_tokens=0, **fields) if "best_of" not in fields else whole(live, TEXT, max_tokens=0, **fields)
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"]
    assert len(answer["choices"]) == fields.get("n", 1)
    for choice in answer["choices"]:
        assert (choice["text"], choice["finish_reason"]) == (PROMPT if "echo" in fields else "", "length")
        if "logprobs" in fields:
            assert choice["logprobs"]["tokens"] == (NAMES if "echo" in fields else [])


@pytest.mark.parametrize("end", [{"stop": ["l"]}, {"stop": ["pha"]}, {"stop_token_ids": [ord("p")]}])
def test_an_echoed_answer_ends_with_its_stop(live: Live, end: dict[str, Any]) -> None:
    """The stop in the prompt is none, and text, ids and logprobs are of the same tokens."""
    (choice,) = check_stream_is_the_same(live, prompt="lalpha? ", echo=True, logprobs=0, return_token_ids=True, **end)["choices"]
    (sought,) = end.get("stop") or [end["stop_token_ids"][0]]
    said = "a" if sought == "l" or sought == "pha" else "alp"
    assert choice["text"] == "lalpha? " + ("al" if sought == "pha" else said)
    assert choice["stop_reason"] == sought
    assert len(choice["logprobs"]["tokens"]) == len("lalpha? ") + len(choice["token_ids"])
    assert {len(column) for column in choice["logprobs"].values()} == {len(choice["logprobs"]["tokens"])}
    assert bytes(choice["prompt_token_ids"]) == b"lalpha? "


@pytest.mark.parametrize(("n", "best_of"), [(1, 5), (2, 5), (3, 4)])
def test_the_best_of_more(random: Live, n: int, best_of: int) -> None:
    """The likeliest in the mean of what `n` alone would give, best first; all are counted."""
    asked = {"prompt": ["Q", "xy"], "seed": 3, "temperature": 1.5, "max_tokens": 6, "ignore_eos": True}
    everything = whole(random, TEXT, n=best_of, logprobs=0, **asked)
    best = whole(random, TEXT, n=n, best_of=best_of, **asked)
    assert best["usage"]["completion_tokens"] == everything["usage"]["completion_tokens"] == 2 * best_of * 6
    assert [choice["index"] for choice in best["choices"]] == list(range(2 * n))
    assert all(choice["logprobs"] is None for choice in best["choices"])
    for prompt in range(2):
        candidates = everything["choices"][prompt * best_of : (prompt + 1) * best_of]
        ranked = sorted(candidates, key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))
        assert [choice["text"] for choice in best["choices"][prompt * n : (prompt + 1) * n]] == [choice["text"] for choice in ranked[:n]]
    assert [choice["logprobs"] for choice in whole(random, TEXT, n=n, best_of=best_of, logprobs=0, **asked)["choices"][:n]] == [
        choice["logprobs"] for choice in sorted(everything["choices"][:best_of], key=lambda choice: -sum(choice["logprobs"]["token_logprobs"]))[:n]
    ]


@pytest.mark.parametrize("prompt", ["abcdef", list(b"abcdef")], ids=["text", "ids"])
@pytest.mark.parametrize(("keep", "kept"), [(2, "ef"), (6, "abcdef"), (99, "abcdef"), (-1, "abcdef")])
def test_a_prompt_is_cut_to_its_last_tokens(live: Live, prompt: Any, keep: int, kept: str) -> None:
    answer = check_stream_is_the_same(live, prompt=prompt, truncate_prompt_tokens=keep, echo=True, max_tokens=2, return_token_ids=True)
    assert answer["choices"][0]["text"] == kept + "al"
    assert answer["usage"]["prompt_tokens"] == len(kept)
    assert bytes(answer["choices"][0]["prompt_token_ids"]).decode() == kept


def test_a_prompt_beyond_the_context_is_cut_to_what_fits(live: Live) -> None:
    for prompt in ("x" * 600, [65] * 600):
        assert whole(live, TEXT, prompt=prompt, truncate_prompt_tokens=-1, max_tokens=12)["usage"]["prompt_tokens"] == 500
        assert whole(live, TEXT, prompt=prompt, truncate_prompt_tokens=-1, max_tokens=0)["usage"]["prompt_tokens"] == 511
        assert check_error(live.http.post(TEXT, json=body(TEXT, prompt=prompt, truncate_prompt_tokens=512)))["code"] == "context_length_exceeded"
    long = [{"role": "user", "content": "x" * 600}]
    assert whole(live, CHAT, messages=long, truncate_prompt_tokens=-1, max_tokens=None)["usage"]["prompt_tokens"] == 511


def test_tokens_are_called_by_their_ids(live: Live) -> None:
    (choice,) = check_stream_is_the_same(live, prompt="ä", echo=True, logprobs=1, prompt_logprobs=0, max_tokens=1, return_tokens_as_token_ids=True)["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:195", "token_id:164", f"token_id:{ord('a')}"]
    assert all(name.startswith("token_id:") for shown in choice["logprobs"]["top_logprobs"][1:] for name in shown)
    assert choice["prompt_logprobs"][1]["164"]["decoded_token"] == "token_id:164"
    content = whole(live, CHAT, logprobs=True, top_logprobs=2, max_tokens=1, return_tokens_as_token_ids=True)["choices"][0]["logprobs"]["content"]
    assert content[0]["token"] == content[0]["top_logprobs"][0]["token"] == f"token_id:{ord('a')}"
    assert content[0]["bytes"] == [ord("a")]


def test_the_last_message_of_the_assistant_is_repeated(live: Live) -> None:
    talk = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "So: "}]
    for fields in ({"continue_final_message": True}, {}):
        assert whole(live, CHAT, messages=talk, echo=True, **fields)["choices"][0]["message"]["content"] == "So: alpha beta"
        deltas = [choice["delta"].get("content", "") for chunk in chunks(live, CHAT, messages=talk, echo=True, **fields) for choice in chunk["choices"]]
        assert deltas[:2] == ["", "So: "]
        assert "".join(deltas) == "So: alpha beta"
    assert whole(live, CHAT, echo=True)["choices"][0]["message"]["content"] == "alpha beta"


@pytest.fixture(scope="module")
def stepwise() -> Iterator[Live]:
    """Says every token on its own."""
    with Live(PlainClient(reply="hello world")) as server:
        yield server


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_tokens_are_sent_together(stepwise: Live, path: str) -> None:
    sizes = []
    for chunk in chunks(stepwise, path, stream_interval=4, return_token_ids=True, model="tiny"):
        sizes += [len(choice["token_ids"]) for choice in chunk["choices"] if choice.get("token_ids")]
    assert sizes == [1, 4, 4, 2]


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_usage_so_far(stepwise: Live, path: str) -> None:
    found = chunks(stepwise, path, model="tiny", max_tokens=5, stream_options={"include_usage": True, "continuous_usage_stats": True})
    counts = [chunk["usage"]["completion_tokens"] for chunk in found]
    assert counts == sorted(counts)
    assert set(counts) == {1, 2, 3, 4, 5}
    assert found[-1]["choices"] == []
    assert all("usage" not in chunk for chunk in chunks(stepwise, path, model="tiny", stream_options={"continuous_usage_stats": True}))


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_padded_chunks_have_few_lengths(live: Live, path: str) -> None:
    response = live.http.post(path, json=body(path, stream=True, stream_options={"include_obfuscation": True}))
    padded = events(response.text)[:-1]
    assert {len(chunk.encode()) % 64 for chunk in padded} == {0}
    assert all("obfuscation" in json.loads(chunk) for chunk in padded)
    assert all("obfuscation" not in chunk for chunk in chunks(live, path, stream_options={"include_obfuscation": False}))


def test_the_fingerprint_is_one_for_a_server(live: Live) -> None:
    found = {whole(live, path, max_tokens=1)["system_fingerprint"] for path in (TEXT, CHAT)}
    found |= {chunk["system_fingerprint"] for chunk in chunks(live, TEXT, max_tokens=3)}
    assert len(found) == 1
    assert all(text.startswith("fp_") for text in found)


def test_a_stream_that_fails_says_what_was_held_back() -> None:
    with engine(texts=("alpha beta",), raise_at=8) as (live, _):
        response = live.http.post(TEXT, json=body(TEXT, stream=True, stream_interval=5))
        *said, error = [json.loads(event) for event in events(response.text)]
        assert "".join(choice["text"] for chunk in said for choice in chunk["choices"]) == "alpha be"
        assert error["error"]["code"] == "request_failed"


class Words:
    """A tokenizer of a few words, whose ids are their places."""

    def __init__(self, *words: bytes) -> None:
        self.words = words

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id]


@pytest.mark.parametrize(
    ("text", "words", "places"),
    [
        ("Hello world", (b"<s>", b" Hello", b" world"), [0, 0, 5]),
        ("<s>Hello", (b"<s>", b"<s>", b"Hello"), [0, 3, 3]),
        ("a  b", (b"a", b" ", b"b"), [0, 1, 3]),
        ("ä", (b"<s>", b"\xc3", b"\xa4", b"</s>"), [0, 0, 0, 1]),
        ("", (b"<s>",), [0]),
        ("other", (b"\xff", b"x", b"other"), [0, 0, 0]),
    ],
)
def test_where_tokens_stand_in_a_text_that_they_do_not_spell(text: str, words: tuple[bytes, ...], places: list[int]) -> None:
    """The tokenizer adds some, drops a first space, reads two spaces as one."""
    ids = tuple(range(len(words)))
    output = RequestOutput(request_id="r", prompt=text, num_prompt_tokens=len(ids), num_cached_tokens=0, outputs=(), finished=False, prompt_token_ids=ids)
    part = PromptPart.of(output, Shown(echo=True, logprobs=0), cast(Tokenizer, Words(*words)), skip_special_tokens=True)
    assert part.logprobs is not None
    assert part.logprobs.text_offset == places


@pytest.mark.parametrize("streaming", [False, True])
def test_a_long_prompt_is_shown_beside_the_loop(streaming: bool) -> None:
    client = PlainClient()
    threads = set()

    def noted(token_id: int) -> bytes:
        threads.add(threading.current_thread().name)
        return TOKENIZER.token_bytes(token_id)

    client.tokenizer = Asked(TOKENIZER, noted)
    with Live(client) as live:
        for prompt, loop in (("x" * 100, True), ("x" * 400, False)):
            threads.clear()
            response = live.http.post(
                TEXT, json=body(TEXT, model="tiny", prompt=prompt, prompt_logprobs=20, echo=True, logprobs=0, max_tokens=1, stream=streaming)
            )
            assert response.status_code == 200, response.text
            assert threads
            assert ("frontend-under-test" in threads) == loop


def test_tokens_of_a_real_vocabulary_stand_where_they_are_written(demo_source: WeightSource) -> None:
    tokenizer = HfTokenizer(demo_source)
    text = " Hello,  world\n<|im_start|>ünïcödé 世界 🙂 done"
    ids = tuple(tokenizer.encode(text))
    output = RequestOutput(request_id="r", prompt=None, num_prompt_tokens=len(ids), num_cached_tokens=0, outputs=(), finished=False, prompt_token_ids=ids)
    for given, skip in ((replace(output, prompt=text), True), (output, False), (output, True)):
        part = PromptPart.of(given, Shown(echo=True, logprobs=0), tokenizer, skip_special_tokens=skip)
        assert part.text == (text if given.prompt or not skip else text.replace("<|im_start|>", ""))
        assert part.logprobs is not None
        places = [*part.logprobs.text_offset, len(part.text)]
        assert places == sorted(places)
        for name, start, end in zip(part.logprobs.tokens, places, places[1:], strict=False):
            if not name.startswith("bytes:"):
                assert part.text[start:end] == (name if name != "<|im_start|>" or "<|" in part.text else "")
