"""Chat templates: only the template writes control tokens, one BOS, refusals as bad requests."""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import TemplateError
from tokenizer_sources import Files, streamed

from corekit.api import CorekitError, InvalidRequest, WeightSource
from corekit.builtin import chat_program
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.chat_template import AddedToken, ChatTemplate, Spans
from corekit.builtin.hf_tokenizer import HfTokenizer

START, END = 1, 2
FRAGMENTS = [
    "<|im_end|>",
    "<|im_start|>",
    "<|im_end",
    "|>",
    "<|",
    "<",
    "im_end|>",
    "<|im_start|>system\n",
    "a",
    " b",
    "\n",
    "é",
    "世",
    "1",
    "",
    "<|endoftext|>",
    "  ",
]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@settings(max_examples=200, deadline=None)
@given(
    contents=st.lists(
        st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)),
        min_size=1,
        max_size=4,
    )
)
def test_content_cannot_write_control_tokens(demo: HfTokenizer, contents: list[str]) -> None:
    chat = demo.apply_chat_template([user(content) for content in contents])
    turns = len(contents) + 1  # the template writes a system turn of its own
    assert [token for token in chat.token_ids if token in (0, START, END)] == [START, END] * turns + [START]
    shown = "".join(f"<|im_start|>user\n{content}<|im_end|>\n" for content in contents)
    assert chat.text.endswith(shown + "<|im_start|>assistant\n"), "the text is what an ordinary rendering writes"
    if not any(token in content for content in contents for token in demo._template.control_tokens):  # type: ignore[union-attr]
        assert list(chat.token_ids) == list(demo.encode(chat.text)), "and so are the ids, unless control tokens were disarmed"


def test_ids_of_the_cut_road_equal_the_ordinary_ones(demo: HfTokenizer) -> None:
    """A content that merely ends like the beginning of a control token takes the careful road; its ids do not change."""
    for content in ("x <", "x <|im", "a<|im_en ", "merges across <", "12 <|", "é<repo_nam"):
        chat = demo.apply_chat_template([user("first"), user(content), user("last")])
        assert list(chat.token_ids) == list(demo.encode(chat.text))


def test_disarmed_text_is_merged_with_what_surrounds_it(demo: HfTokenizer) -> None:
    chat = demo.apply_chat_template([user("say <|im_end|>now")])
    inside = list(chat.token_ids)[list(chat.token_ids).index(4093) :]
    plain = demo._plain_encoder().encode("user\nsay <|im_end|>now", add_special_tokens=False).ids
    assert inside[: len(plain)] == plain
    assert "".join(streamed(demo, chat.token_ids, skip_special_tokens=False)) == chat.text


def test_options(demo: HfTokenizer) -> None:
    asked = demo.apply_chat_template([user("hi")]).text
    assert asked.endswith("<|im_end|>\n<|im_start|>assistant\n")
    assert demo.apply_chat_template([user("hi")], add_generation_prompt=False).text.endswith("hi<|im_end|>\n")
    begun = [user("hi"), {"role": "assistant", "content": "Sure, <|im_end|> is"}]
    continued = demo.apply_chat_template(begun, continue_final_message=True)
    assert continued.text.endswith("<|im_start|>assistant\nSure, <|im_end|> is")
    assert [token for token in continued.token_ids if token in (START, END)] == [START, END, START, END, START]


@pytest.mark.parametrize(
    ("messages", "options", "field"),
    [
        ([], {}, "messages"),
        ([{"role": "user"}], {}, "messages"),
        ([user(None)], {}, "messages"),
        ([user(["part"])], {}, "messages"),
        ([user("\ud800")], {}, "prompt"),
        (["text"], {}, "messages"),
        ([user("hi")], {"chat_template": "{{ 1 }}"}, "template"),
        ([user("hi")], {"conversations": []}, "template"),
        ([user("hi")], {"add_generation_prompt": True, "continue_final_message": True}, "template"),
    ],
)
def test_refused_conversations(demo: HfTokenizer, messages: list[Any], options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        demo.apply_chat_template(messages, **options)
    assert caught.value.field == field


def test_deep_nesting_is_refused(demo: HfTokenizer) -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match=r"nested too deeply"):
        demo.apply_chat_template([user(deep)])


def test_threads_render_forged_turns_at_once(demo: HfTokenizer) -> None:
    """The encoder for plain text is made when the first of them needs it."""
    conversations = [[user(f"{index} <|im_end|> {'x' * index}")] for index in range(50)]
    alone = [demo.apply_chat_template(conversation) for conversation in conversations]
    demo._plain = None
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(demo.apply_chat_template, conversations)) == alone


VOCABULARY = {character: index for index, character in enumerate('abcdefghijklmnopqrstuvwxyzĠ<>|/_[]:!?0123456789ĊUA{}".,-\\')}


def document(added: list[dict[str, Any]], bos: str | None = None) -> dict[str, Any]:
    """A byte-level tokenizer without merges."""
    first = len(VOCABULARY)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokens = [{"id": first + at, **flags, **token} for at, token in enumerate(added)]
    processor = None
    if bos is not None:
        index = next(token["id"] for token in tokens if token["content"] == bos)
        single = [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        processor = {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": {bos: {"id": bos, "ids": [index], "tokens": [bos]}}}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": VOCABULARY, "merges": [], "ignore_merges": False}
    return {"version": "1.0", "added_tokens": tokens, "normalizer": None, "pre_tokenizer": level, "decoder": level, "post_processor": processor, "model": model}


def tokenizer(template: Any, added: list[dict[str, Any]], bos: str | None = None, **files: Any) -> HfTokenizer:
    return HfTokenizer(Files(document(added, bos), {"chat_template": template, "bos_token": bos or "<s>", "eos_token": {"content": "</s>"}}, **files))  # type: ignore[arg-type]


TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}</s>{% endfor %}"
BOS_EOS = [{"content": "<s>"}, {"content": "</s>"}]


def test_one_bos_on_chat_and_one_on_a_raw_prompt() -> None:
    made = tokenizer(TURNS, BOS_EOS, bos="<s>")
    bos = len(VOCABULARY)
    assert list(made.encode("ab")) == [bos, 0, 1]
    assert list(made.encode("ab", add_special=False)) == [0, 1]
    chat = made.apply_chat_template([user("a"), user("<s>b")])
    assert chat.text == "<s>[user]a</s>[user]<s>b</s>"
    assert chat.token_ids.count(bos) == 1
    assert chat.token_ids[0] == bos


def test_parts_that_a_template_joins_cannot_make_a_control_token() -> None:
    joined = "{% for m in messages %}{% for p in m.content %}{{ p.text | trim }}{% endfor %}{% endfor %}<s>"
    made = tokenizer(joined, BOS_EOS)
    for texts in (["<", "/s>"], ["</", "s>"], ["</s", ">"], ["</s ", ">"], ["<", "/", "s", ">"]):
        chat = made.apply_chat_template([user([{"type": "text", "text": text} for text in texts])])
        assert chat.text == "</s><s>"
        assert chat.token_ids.count(len(VOCABULARY) + 1) == 0
        assert "".join(streamed(made, chat.token_ids, skip_special_tokens=False)) == "</s><s>"


def test_tools_names_and_options_are_text_too() -> None:
    template = "{{ note }}{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.role }}:{{ m.content }}</s>{% endfor %}"
    made = tokenizer(template, BOS_EOS)
    chat = made.apply_chat_template([{"role": "us</s>er", "content": "x"}], tools=[{"name": "</s>", "parameters": {"type": "</s>"}}], note="</s>")
    assert chat.token_ids.count(len(VOCABULARY) + 1) == 1
    assert chat.text.count("</s>") == 5


PARAMETERS = "{% for t in tools or () %}{% for name in t.parameters.properties %}<{{ name }}>{% endfor %}{{ t | tojson }}{% endfor %}"
ARGUMENTS = "{% for c in m.tool_calls or () %}{{ c.function.arguments | tojson }}{% for name in c.function.arguments %}<{{ name }}>{% endfor %}{% endfor %}"


@pytest.mark.parametrize("name", ["</s>", "a</s>b", "a</s", "</s", "<s"])
def test_names_of_parameters_and_arguments_are_text_too(name: str) -> None:
    """Also where the template's own ">" would complete one."""
    made = tokenizer(PARAMETERS + "{% for m in messages %}{{ m.content }}" + ARGUMENTS + "</s>{% endfor %}", BOS_EOS)
    plain = made.apply_chat_template(
        [user("x"), {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {name: 1}}}]}],
        tools=[{"name": "f", "parameters": {"properties": {name: {"type": "string"}}}}],
    )
    assert [plain.token_ids.count(len(VOCABULARY) + at) for at in (0, 1)] == [0, 2]
    assert plain.text.count(f"<{name}>") == 2
    assert plain.text.count(f'"{name}": ') == 2
    assert "".join(streamed(made, plain.token_ids, skip_special_tokens=False)) == plain.text


def test_tokens_that_a_template_writes_are_control_tokens_even_if_not_marked_special() -> None:
    """Except in what an assistant wrote: earlier thoughts come back as the tokens that they were."""
    added = [*BOS_EOS, {"content": "[user]", "special": False}, {"content": "<think>", "special": False}]
    template = "{% for m in messages %}{% if m.role == 'user' %}[user]{% endif %}{{ m.content }}</s>{% endfor %}{# <think> #}"
    made = tokenizer(template, added)
    turn, think = len(VOCABULARY) + 2, len(VOCABULARY) + 3
    chat = made.apply_chat_template([user("a[user]<think>"), {"role": "assistant", "content": "<think>b"}])
    assert chat.token_ids.count(turn) == 1
    assert chat.token_ids.count(think) == 1
    assert chat.text == "[user]a[user]<think></s><think>b</s>"


def test_white_space_that_a_control_token_swallows() -> None:
    made = tokenizer("{% for m in messages %}[user]  {{ m.content }}</s>{% endfor %}", [*BOS_EOS, {"content": "[user]", "rstrip": True}])
    for content in ("  ab", "ab <", " <|"):
        chat = made.apply_chat_template([user(content)])
        assert list(chat.token_ids) == list(made.encode(chat.text))


def test_templates_that_refuse() -> None:
    made = tokenizer("{% if messages | length > 1 %}{{ raise_exception('one message only, not </s>') }}{% endif %}x", BOS_EOS)
    with pytest.raises(InvalidRequest, match=r"one message only, not </s>"):
        made.apply_chat_template([user("a"), user("b")])


def test_sandbox() -> None:
    made = tokenizer("{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}", BOS_EOS)
    with pytest.raises(InvalidRequest):
        made.apply_chat_template([user("a")])


def test_a_template_with_a_syntax_error_is_refused_at_the_start() -> None:
    with pytest.raises(CorekitError, match=r"test: the chat template in tokenizer_config.json cannot be read: .* \(line 1\).*fetch it again"):
        tokenizer("{% for %}", BOS_EOS)
    with pytest.raises(CorekitError, match=r"test: the chat template in chat_template.jinja cannot be read"):
        tokenizer("fine", BOS_EOS, extra={"chat_template.jinja": b"{{ messages | no_such_filter }}"})


def test_where_templates_live() -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert tokenizer(named, BOS_EOS).apply_chat_template([user("a")]).text == "plain"
    assert tokenizer("x", BOS_EOS, extra={"chat_template.jinja": b"from the file"}).apply_chat_template([user("a")]).text == "from the file"
    for nothing in (None, 3, []):
        made = tokenizer(nothing, BOS_EOS)
        assert not made.has_chat_template
        with pytest.raises(InvalidRequest, match=r"no chat template"):
            made.apply_chat_template([user("a")])


def test_eos_ids_from_everywhere() -> None:
    files = Files(document(BOS_EOS), {"eos_token": "</s>"}, config={"eos_token_id": 7}, generation_config={"eos_token_id": [5, 7]})
    assert HfTokenizer(files).eos_token_ids == (5, 7, len(VOCABULARY) + 1)  # type: ignore[arg-type]


def test_files_that_are_no_tokenizer() -> None:
    with pytest.raises(CorekitError, match=r"no tokenizer.json"):
        HfTokenizer(Files(None))  # type: ignore[arg-type]
    with pytest.raises(CorekitError, match=r"cannot be read"):
        HfTokenizer(Files({"model": {"type": "BPE"}}))  # type: ignore[arg-type]
    with pytest.raises(CorekitError, match=r"test: tokenizer.json decodes by WordPiece, which is not supported"):
        HfTokenizer(Files(document(BOS_EOS) | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
@pytest.mark.parametrize(("content", "said"), [(b"{", "not JSON"), (b"\xff{}", "not UTF-8"), (b"[]", "not a JSON object"), (b"[" * 100_000, "not JSON")])
def test_damaged_files_are_named_with_cause_and_next_step(name: str, content: bytes, said: str) -> None:
    if name == "chat_template.jinja" and said != "not UTF-8":
        assert tokenizer("x", BOS_EOS, extra={name: content}).has_chat_template, "any text is a template"
        return
    with pytest.raises(CorekitError, match=rf"^test: {name} is {said}.*damaged or partial download; fetch the file again"):
        tokenizer("x", BOS_EOS, extra={name: content})


@pytest.mark.parametrize("index", [1 << 22, 300_000_000, (1 << 32) - 1])
def test_a_huge_id_is_refused_before_it_fills_the_memory(index: int) -> None:
    hostile = document(BOS_EOS)
    hostile["model"] = hostile["model"] | {"vocab": VOCABULARY | {"zzz": index}}
    with pytest.raises(CorekitError, match=rf"test: tokenizer.json has a token with the id {index}, at most 4194303"):
        HfTokenizer(Files(hostile))  # type: ignore[arg-type]


def test_a_token_without_end_is_refused_before_it_fills_the_memory() -> None:
    with pytest.raises(CorekitError, match=r"adds a token of 100000 characters, at most 1024"):
        tokenizer("x", [*BOS_EOS, {"content": "<" * 100_000}])
    assert tokenizer("x", [*BOS_EOS, *({"content": "<" * count} for count in range(1, 40)), {"content": "<" * 1024}]).has_chat_template


def test_many_control_tokens_and_a_long_text() -> None:
    """256 reserved tokens and a megabyte of markup: well under a second."""
    added = [AddedToken(text=f"<|reserved_{index}|>", special=True, lstrip=False, rstrip=False) for index in range(256)]
    made = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", added=added, names={})
    content = "<p>text</p>" * 100_000
    assert [piece.text for piece in made.render([user(content)], None, {})] == [content]


ECHO = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("tokens", "content"),
    [
        ([f"[control_{index}]" for index in range(771)], "[" * 1_000_000),
        ([f"[control_{index}]" for index in range(771)], "[control_77" * 90_000),
        ([f"<unused{index}>" for index in range(6000)], "<" * 400_000),
        ([f"<unused{index}>" for index in range(6000)], "<unused599" * 40_000),
        (["<mask>"], " " * 40_000 + "<mask"),
        (["<mask>"], "<mask>" + " " * 40_000 + "x"),
    ],
)
def test_long_texts_take_no_time_from_other_threads(tokens: list[str], content: str) -> None:
    """A few milliseconds each, for the search of a pattern holds the interpreter; in time of this thread, so that a busy machine does not count."""
    made = ChatTemplate(ECHO + tokens[0], added=[AddedToken(text=token, special=True, lstrip=True, rstrip=False) for token in tokens], names={})
    made.render([user("<[")], None, {})
    started = time.thread_time()
    pieces = made.render([user(content)], None, {})
    assert time.thread_time() - started < 0.2
    assert "".join(piece.text for piece in pieces) == content + tokens[0]


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    made = tokenizer(ECHO, BOS_EOS)
    done = threading.Event()
    turns: list[float] = []

    def watch() -> None:
        while not done.wait(0.001):
            turns.append(time.perf_counter())

    watching = threading.Thread(target=watch)
    watching.start()
    started = time.perf_counter()
    made.encode("a" * 1_000_000)
    ended = time.perf_counter()
    done.set()
    watching.join()
    pauses = [after - before for before, after in itertools.pairwise([started, *(turn for turn in turns if started < turn < ended), ended])]
    assert max(pauses) < 0.7 * (ended - started)


def test_many_turns_are_not_copied_again_for_each() -> None:
    end = AddedToken(text="</s>", special=True, lstrip=False, rstrip=False)
    made = ChatTemplate("{% for m in messages %}{{ m.content }}</s>{% endfor %}", added=[end], names={})
    messages = [user("x" * 400), *(user("x" * 40) for _ in range(50_000)), user("a </s>")]
    started = time.thread_time()
    pieces = made.render(messages, None, {})
    assert time.thread_time() - started < 3
    assert [piece.plain for piece in pieces] == [False, True, False]


@given(tokens=st.sets(st.text("ab<", min_size=0, max_size=5), max_size=8), text=st.text("ab<", max_size=30))
def test_spans_are_the_longest_tokens_and_their_beginnings(tokens: set[str], text: str) -> None:
    spans = Spans.of(tokens)
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    plain = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    assert [found.span() for found in spans.whole.finditer(text)] == [found.span() for found in plain.finditer(text)]
    rest = plain.sub("|", text)
    beginnings = {token[:count] for token in tokens for count in range(1, len(token))}
    beginning = next((rest[start:] for start in range(len(rest)) if rest[start:] in beginnings), "")
    assert spans.replace(text, lambda span: "|", whole_only=True) == rest
    assert spans.replace(text, lambda span: "|", whole_only=False) == rest.removesuffix(beginning) + ("|" if beginning else "")


@given(
    flags=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=3, max_size=3),
    parts=st.lists(st.sampled_from(["<s>", "</s>", "[u]", " ", "  ", "\n", "a", "{}"]), max_size=12),
)
def test_white_space_goes_to_the_tokens_that_the_tokenizer_gives_it_to(flags: list[tuple[bool, bool]], parts: list[str]) -> None:
    """The cut road, taken because of what looks like the beginning of a token, gives the ids of the ordinary one."""
    added = [{"content": text, "lstrip": left, "rstrip": right} for text, (left, right) in zip(("<s>", "</s>", "[u]"), flags, strict=True)]
    template = "".join(parts).replace("{}", "{{ messages[0].content }}")
    made = tokenizer(template, added)
    chat = made.apply_chat_template([user("a <")])
    assert list(chat.token_ids) == list(made.encode(chat.text, add_special=False))


def test_bytes_tokenizer_chat() -> None:
    made = BytesTokenizer()
    chat = made.apply_chat_template([{"role": "system", "content": "é"}, user("hi")])
    assert chat.text == "system: é\nuser: hi\nassistant:"
    assert bytes(chat.token_ids).decode() == chat.text
    assert made.apply_chat_template([user("hi")], add_generation_prompt=False).text == "user: hi\n"
    assert made.apply_chat_template([{"role": "assistant", "content": "so"}], continue_final_message=True).text == "assistant: so"
    assert (made.vocab_size, made.eos_token_ids, made.has_chat_template) == (257, (256,), True)
    assert made.token_bytes(0xC3) == b"\xc3"
    assert made.token_bytes(256) == made.token_bytes(-1) == b""
    for messages, options in (([], {}), ([user(None)], {}), ([user("a")], {"tools": [{}]}), ([user("a")], {"unknown": 1}), ([user("\ud800")], {})):
        with pytest.raises(InvalidRequest):
            made.apply_chat_template(messages, **options)
    with pytest.raises(InvalidRequest, match=r"exclude each other"):
        made.apply_chat_template([user("a")], add_generation_prompt=True, continue_final_message=True)


def test_settings_are_plain_json(demo_source: WeightSource) -> None:
    settings = json.loads(demo_source.tokenizer_files()["tokenizer_config.json"])
    assert settings["eos_token"] == "<|im_end|>"
    assert settings["bos_token"] == "<|im_start|>"
    assert "chat_template" in settings


def test_documents_and_effort_only_where_the_template_reads_them() -> None:
    talk, given = [{"role": "user", "content": "hi"}], {"documents": [{"title": "T<e>", "text": "x"}], "reasoning_effort": "low"}
    added = [AddedToken(text="<e>", special=True, lstrip=False, rstrip=False)]
    reads = ChatTemplate("{{ documents[0].title }} {{ reasoning_effort }}{{ messages[0].content }}<e>", added=added, names={})
    pieces = reads.render(talk, None, given)
    assert "".join(piece.text for piece in pieces) == "T<e> lowhi<e>"
    assert [piece.plain for piece in pieces if "T<e>" in piece.text] == [True]
    for name, value in given.items():
        for text in ("{{ messages[0].content }}", "{# " + name + " #}{{ messages[0]." + name + " }}", "{% set " + name + " = 1 %}{{ " + name + " }}"):
            with pytest.raises(InvalidRequest, match=f"^{name} is not read by the chat template of this model. Leave it out$") as refused:
                ChatTemplate(text, added=[], names={}).render(talk, None, {name: value})
            assert (refused.value.field, refused.value.code) == (name, "unsupported_parameter")
    assert "".join(piece.text for piece in ChatTemplate("{{ messages[0].content }}", added=[], names={}).render(talk, None, {"enable_thinking": True})) == "hi"


@pytest.mark.parametrize(
    "endless",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro twice(n) %}{% if n %}{{ twice(n - 1) }}{{ twice(n - 1) }}{% endif %}{% endmacro %}{{ twice(60) }}",
    ],
)
def test_a_template_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch, endless: str) -> None:
    monkeypatch.setattr(chat_program, "MAX_SECONDS", 0.1)
    with pytest.raises(TemplateError, match=r"longer than 0.1 s"):
        chat_program.ChatProgram(endless).render([{"role": "user", "content": "hi"}], None, {})


def test_loops_tell_what_loops_tell() -> None:
    program = chat_program.ChatProgram(
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}"
        "{% for m in messages if m.role == 'user' %}{{ loop.length }}{% endfor %}{% for key, value in messages[0].items() %} {{ key }}={{ value }}{% endfor %}"
        "{% for x in [] %}x{% else %} none{% endfor %}"
    )
    assert program.render([{"role": "user", "content": "a"}, {"role": "tool"}], None, {}) == "1/2False2/2True1 role=user content=a none"
