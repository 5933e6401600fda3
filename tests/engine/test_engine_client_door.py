"""What the door refuses: each with its field, its value and the limit, before anything is queued."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from engine_stand_in import Alive, Bytes, StandIn, client_of, facts

from corekit.api import ChatPrompt, InvalidRequest, Overloaded, Prompt, SamplingParams
from corekit.engine.door import Door
from corekit.engine.request import NewRequest

IDS = (65, 66, 67)
NEW = NewRequest(request_id="old", token_ids=IDS, params=SamplingParams(), max_tokens=9, seed=0, end_ids=(), arrival_time=0.0)


async def ask(client, prompt, params=None, **identity):
    return [output async for output in client.generate(prompt, params or SamplingParams(max_tokens=2), **identity)]


def refused(prompt=None, params=None, *, tokenizer=None, model=None, **identity) -> InvalidRequest:
    engine = StandIn()
    client = client_of(engine, tokenizer=tokenizer, **(model or {}))
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(ask(client, prompt or Prompt(token_ids=IDS), params, **identity))
    assert not engine.inbox
    assert not client._streams
    return caught.value


@pytest.mark.parametrize(
    "prompt",
    [Prompt(text=""), Prompt(token_ids=()), Prompt(messages=()), Prompt(messages=({"role": "user", "content": ""},))],
    ids=["text", "ids", "messages", "template renders nothing"],
)
def test_empty_prompts(prompt):
    error = refused(prompt)
    assert error.field == ("prompt" if prompt.messages is None else "messages")
    assert error.code == "empty_prompt"


@pytest.mark.parametrize("wrong", [-1, 257, 10**9])
def test_ids_outside_the_vocabulary(wrong):
    error = refused(Prompt(token_ids=(1, wrong)))
    assert (error.field, f"from 0 to 256, got {wrong} at index 1" in str(error)) == ("prompt", True)
    error = refused(params=SamplingParams(stop_token_ids=(3, 4, wrong), min_tokens=1))
    assert (error.field, f"got {wrong} at index 2" in str(error)) == ("stop_token_ids", True)


def test_the_padding_between_tokenizer_and_model_is_outside():
    assert "from 0 to 256" in str(refused(Prompt(token_ids=(300,)), model={"vocab_size": 512}))
    assert "from 0 to 99" in str(refused(Prompt(token_ids=(100,)), model={"vocab_size": 100}))


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "field", "asked"), [(50, 1, "prompt", 51), (60, None, "prompt", 61), (40, 11, "max_tokens", 51), (49, 2, "max_tokens", 51)]
)
def test_too_long_for_the_context_states_limit_prompt_and_request(num_prompt, max_tokens, field, asked):
    error = refused(Prompt(token_ids=(65,) * num_prompt), SamplingParams(max_tokens=max_tokens), model={"max_model_len": 50})
    assert (error.field, error.code) == (field, "context_length_exceeded")
    for number in (50, num_prompt, asked):
        assert f"{number} " in str(error)


@pytest.mark.parametrize(("max_tokens", "made"), [(None, 10), (10, 10), (3, 3)])
def test_max_tokens_is_what_was_asked_or_what_the_context_leaves(max_tokens, made):
    client = client_of(StandIn(), max_model_len=50)
    client.start()
    outputs = asyncio.run(ask(client, Prompt(token_ids=(65,) * 40), SamplingParams(max_tokens=max_tokens)))
    client.close()
    assert sum(len(o.token_ids) for output in outputs for o in output.outputs) == made


def test_min_tokens_beyond_what_the_context_leaves():
    error = refused(Prompt(token_ids=(65,) * 40), SamplingParams(max_tokens=None, min_tokens=11), model={"max_model_len": 50})
    assert (error.field, "at most 10" in str(error), "got 11" in str(error)) == ("min_tokens", True, True)


def test_min_tokens_when_every_id_ends_a_sample():
    every = SamplingParams(min_tokens=2, stop_token_ids=tuple(range(256)))
    error = refused(params=every)  # the 257th is EOS
    assert (error.field, "leaves nothing to draw" in str(error), "257 ids" in str(error)) == ("min_tokens", True, True)
    assert refused(params=replace(every, ignore_eos=True), model={"vocab_size": 256}).field == "min_tokens"
    client = client_of(StandIn())
    client.start()
    for allowed in (replace(every, ignore_eos=True), replace(every, min_tokens=0), replace(every, stop_token_ids=every.stop_token_ids[1:])):
        assert asyncio.run(ask(client, Prompt(token_ids=IDS), allowed))
    client.close()


def test_what_can_never_fit():
    error = refused(Prompt(token_ids=(65,) * 300), SamplingParams(max_tokens=1))
    assert (error.field, "301" in str(error), "300" in str(error)) == ("prompt", True, True)
    error = refused(params=SamplingParams(n=5))
    assert (error.field, "n = 5" in str(error), "4" in str(error)) == ("n", True, True)


def test_logprobs_without_a_sampler_that_gives_them():
    error = refused(params=SamplingParams(logprobs=0))
    assert (error.field, "got 0" in str(error)) == ("logprobs", True)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("request_id", ""),
        ("request_id", "x" * 257),
        ("request_id", 5),
        ("request_id", "a line\nof its own"),
        ("priority", 2**31),
        ("priority", -(2**31)),
        ("priority", 1.5),
        ("priority", True),
        ("tenant", "x" * 257),
        ("tenant", None),
        ("deadline", float("nan")),
        ("deadline", float("inf")),
        ("deadline", "soon"),
        pytest.param("priority", 10**5000, id="priority beyond what Python writes"),
        pytest.param("deadline", 10**400, id="deadline beyond floats"),
        pytest.param("deadline", -(10**5000), id="deadline beyond what Python writes"),
        pytest.param("request_id", 10**5000, id="id beyond what Python writes"),
    ],
)
def test_bounds_of_identity(field, wrong):
    error = refused(**{field: wrong})
    assert (error.field, field in str(error), "got" in str(error)) == (field, True, True)


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "return_tensors", "messages", "tools", "x"])
def test_template_options_that_are_not_allowed(name):
    error = refused(Prompt(messages=({"role": "user", "content": "hi"},), template={name: True}))
    assert (error.field, repr(name) in str(error), "enable_thinking" in str(error)) == ("template", True, True)


def test_template_options_are_plain_values():
    assert "enable_thinking" in str(refused(Prompt(messages=({"role": "user", "content": "hi"},), template={"enable_thinking": [1]})))


def test_a_generation_prompt_unless_the_last_message_goes_on():
    async def rendered(client, **template):
        return (await ask(client, Prompt(messages=({"role": "user", "content": "hi"},), template=template)))[0].prompt

    client = client_of(StandIn())
    client.start()
    assert asyncio.run(rendered(client)) == "user:hi\nassistant:"
    assert asyncio.run(rendered(client, continue_final_message=True)) == "user:hi\n"
    assert asyncio.run(rendered(client, add_generation_prompt=False)) == "user:hi\n"
    client.close()


def test_the_templates_own_refusal_passes():
    assert "no content" in str(refused(Prompt(messages=({"role": "user"},))))


@pytest.mark.parametrize("text", ["a\ud800", "\udfff" * 3000])
def test_text_that_is_not_unicode(text):
    error = refused(Prompt(text=text))
    assert (error.field, "Unicode" in str(error)) == ("prompt", True)


def test_bos_alone_is_no_prompt():
    class WithBos(Bytes):
        def encode(self, text, *, add_special=True):
            return [1, *super().encode(text)]

        def apply_chat_template(self, messages, *, tools=None, **options):
            return ChatPrompt(text="", token_ids=(1,))

    assert refused(Prompt(messages=({"role": "user", "content": "hi"},)), tokenizer=WithBos()).code == "empty_prompt"
    assert refused(Prompt(text=""), tokenizer=WithBos()).code == "empty_prompt"


# -- the queue


async def race(client, count, num_tokens=1, gave_way=0):
    """How many of `count` requests that come at once get in, and the message of the others."""
    tasks = [asyncio.create_task(ask(client, Prompt(token_ids=(65,) * num_tokens))) for _ in range(count)]
    await asyncio.sleep(0.05)
    failed = [task for task in tasks if task.done()]
    inside = client._engine.num_waiting - gave_way
    client.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    overloaded = [r for r in results if isinstance(r, Overloaded)]
    assert len(overloaded) == len(failed) == count - inside
    return inside, str(overloaded[0]) if overloaded else ""


def test_a_full_queue_by_requests():
    inside, message = asyncio.run(race(client_of(StandIn(), queued=5), 9))
    assert inside == 5
    assert "max_queued_requests" in message
    assert "5" in message


@pytest.mark.parametrize(("tokens", "limit", "inside"), [(30, 30, 3), (0, 400, 40)])
def test_a_full_queue_by_tokens(tokens, limit, inside):
    found, message = asyncio.run(race(client_of(StandIn(), tokens=tokens, max_model_len=100), inside + 3, num_tokens=10))
    assert found == inside
    assert f"(max_queued_tokens) is {limit}" in message


def test_an_empty_queue_takes_any_request_that_fits():
    assert asyncio.run(race(client_of(StandIn(), tokens=5), 2, num_tokens=20))[0] == 1


def test_who_gave_way_takes_no_room_in_the_queue():
    """A full pool puts running requests back to wait; the queue is as long as before."""
    engine = StandIn()
    client = client_of(engine, queued=2, tokens=25)
    for _ in range(5):
        engine.waiting.append(Alive(NEW))
        engine.waiting[-1].ran = True
    assert engine.num_waiting == 5
    inside, message = asyncio.run(race(client, 4, num_tokens=10, gave_way=5))
    assert (inside, "2 requests wait" in message) == (2, True)


def test_racing_threads_are_counted_exactly():
    import threading

    client = client_of(StandIn(), queued=10)
    results: list[object] = []

    def work():
        async def main():
            tasks = [asyncio.create_task(ask(client, Prompt(token_ids=IDS))) for _ in range(5)]
            results.extend(await asyncio.gather(*tasks, return_exceptions=True))

        asyncio.run(main())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    while sum(isinstance(r, Overloaded) for r in list(results)) + client._engine.num_waiting < 10:
        threading.Event().wait(0.001)
    threading.Event().wait(0.1)
    assert client._engine.num_waiting == 10
    client.close()
    for thread in threads:
        thread.join()
    assert sum(isinstance(r, Overloaded) for r in results) == 20


class Spaced(Bytes):
    """Puts a space before every text, as many sentencepiece tokenizers do."""

    def encode(self, text, *, add_special=True):
        return super().encode(f" {text}", add_special=add_special)


class Glued(Bytes):
    """A line break and the letter behind it are one id."""

    def encode(self, text, *, add_special=True):
        return [1, *text[2:].encode()] if text[:1] == "\n" and text[1:] else super().encode(text, add_special=add_special)


@pytest.mark.parametrize("word", ["ab", " ab"])
@pytest.mark.parametrize(("tokenizer", "forms"), [(Bytes(), {b"ab", b" ab"}), (Glued(), {b"ab", b" ab"}), (Spaced(), {b"ab", b" ab", b"  ab"})])
def test_bad_words_are_banned_in_every_form(tokenizer, forms, word):
    door = Door(tokenizer=tokenizer, eos_token_ids=(), model=facts(), refusal=lambda num_prompt_tokens, num_samples: None)
    bad_words = door.ask(IDS, SamplingParams(bad_words=(word, "ab")), "name").bad_words
    assert sorted(map(bytes, bad_words)) == sorted(forms)
    assert door.ask(IDS, SamplingParams(), "name").bad_words == ()


@pytest.mark.parametrize(("keep", "kept"), [(None, b"hello"), (5, b"hello"), (9, b"hello"), (2, b"lo"), (1, b"o")])
@pytest.mark.parametrize("prompt", [{"text": "hello"}, {"token_ids": tuple(b"hello")}], ids=["text", "ids"])
def test_only_the_last_tokens_of_a_prompt_are_kept(prompt, keep, kept):
    client = client_of(StandIn(), max_model_len=50)
    client.start()
    outputs = asyncio.run(ask(client, Prompt(**prompt, max_tokens=keep)))
    client.close()
    assert {(output.prompt_token_ids, output.num_prompt_tokens) for output in outputs} == {(tuple(kept), len(kept))}
    whole = "hello" if "text" in prompt and kept == b"hello" else None
    assert {output.prompt for output in outputs} == {whole}


def test_a_prompt_that_is_cut_may_be_longer_than_the_context():
    error = refused(Prompt(text="x" * 60, max_tokens=51), model={"max_model_len": 50})
    assert (error.field, error.code) == ("prompt", "context_length_exceeded")
    client = client_of(StandIn(), max_model_len=50)
    client.start()
    assert asyncio.run(ask(client, Prompt(text="x" * 60, max_tokens=48)))[-1].num_prompt_tokens == 48
    client.close()


@pytest.mark.parametrize("wrong", [0, -1, 2**31, True, 1.5, "3"])
def test_a_wrong_number_of_kept_tokens(wrong):
    with pytest.raises(InvalidRequest, match=r"max_tokens must be an integer from 1 to 2147483647"):
        Prompt(text="x", max_tokens=wrong)


@pytest.mark.parametrize("wrong", ["text", {"title": "x"}, ["x"], [{"title": 1}], [{"title": ["x"]}], [None], 5])
def test_documents_are_a_list_of_objects_of_strings(wrong):
    error = refused(Prompt(messages=({"role": "user", "content": "hi"},), template={"documents": wrong}))
    assert (error.field, "template option documents must be a list of objects of strings" in str(error)) == ("template option documents", True)
