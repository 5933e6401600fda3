"""Every bound of SamplingParams and Prompt, from both sides: what is legal stays, what is not is refused by the name of its field."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.api import InvalidRequest, Prompt, SamplingParams

BIG = 2**31 - 1
INTEGERS = {"n": (1, 128), "top_k": (-1, BIG), "seed": (-(2**63), 2**63 - 1), "max_tokens": (1, BIG), "min_tokens": (0, 16)}
INTEGERS |= {"logprobs": (0, 20), "prompt_logprobs": (0, 20)}
NUMBERS = {"temperature": (0.0, 2.0), "top_p": (math.nextafter(0, 1), 1.0), "min_p": (0.0, 1.0)}
NUMBERS |= {"repetition_penalty": (0.01, 10.0), "presence_penalty": (-2.0, 2.0), "frequency_penalty": (-2.0, 2.0)}
FLAGS = ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
NOT_A_NUMBER: list[object] = ["1", b"1", [1], (1,), {}, 1j, object]


def refused(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**fields)
    return caught.value


def refused_prompt(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        Prompt(**fields)
    return caught.value


@pytest.mark.parametrize(("field", "least", "most"), [(name, *bounds) for name, bounds in (INTEGERS | NUMBERS).items()])
def test_the_bounds_themselves_are_legal(field: str, least: float, most: float) -> None:
    assert getattr(SamplingParams(**{field: least}), field) == least
    assert getattr(SamplingParams(**{field: most}), field) == most


@pytest.mark.parametrize(("field", "value"), [(name, end) for name, (least, most) in INTEGERS.items() for end in (least - 1, most + 1, 10**400, -(10**400))])
def test_integers_beyond_their_bounds_are_refused(field: str, value: int) -> None:
    error = refused(**{field: value})
    assert error.field == field
    assert str(INTEGERS[field][0]) in str(error), "the limit is in the message"
    assert len(str(error)) < 200


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1e-9), ("temperature", 2.0000001), ("top_p", 0.0), ("top_p", -0.1), ("top_p", 1.0000001), ("min_p", -1e-9), ("min_p", 1.0000001)]
    + [(name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2.0000001, 2.0000001)]
    + [("repetition_penalty", value) for value in (-1.0, 0.0, 1e-46, 0.0099999, 10.000001)]
    + [(name, value) for name in NUMBERS for value in (math.nan, math.inf, -math.inf, 10**400, -(10**400))],
)
def test_numbers_beyond_their_bounds_are_refused(field: str, value: float) -> None:
    error = refused(**{field: value})
    assert error.field == field
    assert f"{field} must be a number" in str(error)


@pytest.mark.parametrize("field", [*INTEGERS, *NUMBERS])
def test_a_number_too_long_to_write_is_refused(field: str) -> None:
    assert "too long to write" in str(refused(**{field: 10**5000}))


@pytest.mark.parametrize("field", [*INTEGERS, *NUMBERS])
@pytest.mark.parametrize("value", [True, False, *NOT_A_NUMBER], ids=repr)
def test_what_is_no_number_is_refused(field: str, value: object) -> None:
    assert refused(**{field: value}).field == field


@pytest.mark.parametrize("field", INTEGERS)
@pytest.mark.parametrize("value", [1.0, 0.5, math.nan, math.inf])
def test_a_float_is_no_integer(field: str, value: float) -> None:
    assert refused(**{field: value}).field == field


@pytest.mark.parametrize("field", [*INTEGERS, *NUMBERS, *FLAGS, "stop", "stop_token_ids"])
def test_none_is_legal_only_where_it_has_a_meaning(field: str) -> None:
    if field in OPTIONAL:
        assert getattr(SamplingParams(**{field: None}), field) is None
    else:
        assert refused(**{field: None}).field == field


@pytest.mark.parametrize("field", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "true", "", []])
def test_flags_are_booleans(field: str, value: object) -> None:
    assert refused(**{field: value}).field == field
    assert getattr(SamplingParams(**{field: True}), field) is True
    assert getattr(SamplingParams(**{field: False}), field) is False


def test_min_tokens_is_bounded_by_max_tokens() -> None:
    assert SamplingParams(max_tokens=5, min_tokens=5).min_tokens == 5
    assert refused(max_tokens=5, min_tokens=6).field == "min_tokens"
    assert str(refused(max_tokens=5, min_tokens=6)) == "min_tokens must be an integer from 0 to max_tokens, which is 5, got 6"
    assert SamplingParams(max_tokens=None, min_tokens=BIG).min_tokens == BIG
    assert refused(max_tokens=None, min_tokens=BIG + 1).field == "min_tokens"


@pytest.mark.parametrize(
    "stop",
    ["x" * 257, "", [""], ["x"] * 17, ["a", "x" * 257], [1], [None], ["a", b"b"], 3, {"a"}, {"a": "b"}, b"ab", object()],
    ids=lambda stop: repr(stop)[:20],
)
def test_bad_stop_strings_are_refused(stop: object) -> None:
    assert refused(stop=stop).field == "stop"


def test_stop_strings_become_a_tuple() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")
    assert SamplingParams(stop=("x" * 256,) * 16).stop == ("x" * 256,) * 16
    assert SamplingParams(stop=[]).stop == ()


@pytest.mark.parametrize("ids", ["12", b"12", [1.0], ["1"], [True], [None], 7, {1}, list(range(257))], ids=lambda ids: repr(ids)[:20])
def test_bad_stop_ids_are_refused(ids: object) -> None:
    error = refused(stop_token_ids=ids)
    assert error.field == "stop_token_ids"
    assert len(str(error)) < 200


def test_stop_ids_become_a_tuple() -> None:
    assert SamplingParams(stop_token_ids=[3, 1]).stop_token_ids == (3, 1)
    assert len(SamplingParams(stop_token_ids=list(range(256))).stop_token_ids) == 256


@pytest.mark.parametrize("field", ["allowed_token_ids", "banned_token_ids"])
@pytest.mark.parametrize("ids", ["12", [1.0], ["1"], [True], [None], 7, {1}, [0] * (2**18 + 1)], ids=lambda ids: repr(ids)[:20])
def test_bad_lists_of_ids_are_refused(field: str, ids: object) -> None:
    assert refused(**{field: ids}).field == field


def test_lists_of_ids_become_tuples() -> None:
    assert SamplingParams(allowed_token_ids=[3, 1]).allowed_token_ids == (3, 1)
    assert SamplingParams(banned_token_ids=[]).banned_token_ids == ()
    assert refused(allowed_token_ids=[]).field == "allowed_token_ids"


@pytest.mark.parametrize(
    "words", ["ab", "", [""], ["x" * 257], ["x"] * 257, [1], [None], ["a", b"b"], 3, {"a"}, {"a": "b"}, b"ab", object()], ids=lambda words: repr(words)[:20]
)
def test_bad_bad_words_are_refused(words: object) -> None:
    assert refused(bad_words=words).field == "bad_words"


@pytest.mark.parametrize("salt", ["", "x" * 1025, 7, b"ab", ("a",), True, "half a pair: \ud800"], ids=lambda salt: repr(salt)[:20])
def test_bad_salts_are_refused(salt: object) -> None:
    error = refused(cache_salt=salt)
    assert error.field == "cache_salt"
    assert str(error).encode(), "what is said of it can be written"


def test_salts_are_any_text() -> None:
    for salt in ("x", " ", "\n", "é" * 256, "\U0001f511"):
        assert SamplingParams(cache_salt=salt).cache_salt == salt


@pytest.mark.parametrize("seconds", [-1, -1e-9, 604800.1, math.nan, math.inf, "60", True, None, 10**400], ids=lambda seconds: repr(seconds)[:20])
def test_bad_retentions_are_refused(seconds: object) -> None:
    assert refused(cache_retention=seconds).field == "cache_retention"


@pytest.mark.parametrize(
    "bias",
    [
        *("12", 7, [5], [(5,)], [(5, 1.0, 2.0)], ["ab"], ((5, 1.0), (5, 2.0)), dict.fromkeys(range(1025), 1.0)),
        *({"5": 1.0}, {5.0: 1.0}, {True: 1.0}),
        *({5: value} for value in ("1", None, True, math.nan, 100.1, -100.1, 10**400)),
    ],
    ids=lambda bias: repr(bias)[:20],
)
def test_bad_biases_are_refused(bias: object) -> None:
    error = refused(logit_bias=bias)
    assert error.field == "logit_bias"
    assert len(str(error)) < 200


def test_biases_become_pairs() -> None:
    assert SamplingParams(logit_bias={3: 1, -1: -100}).logit_bias == ((3, 1.0), (-1, -100.0))
    assert SamplingParams(logit_bias=[[3, 100]]).logit_bias == ((3, 100.0),)  # type: ignore[arg-type,list-item]


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=300),
    st.binary(max_size=3),
    st.lists(st.integers() | st.text(max_size=3), max_size=20),
)


@given(st.dictionaries(st.sampled_from([*INTEGERS, *NUMBERS, *FLAGS, "stop", "stop_token_ids"]), anything, max_size=3))
def test_anything_is_either_taken_whole_or_refused_by_name(fields: dict[str, Any]) -> None:
    error = None
    try:
        params = SamplingParams(**fields)
    except InvalidRequest as raised:
        error = raised
    if error is not None:
        assert error.field in fields
        assert str(error).startswith(f"{error.field} must be ")
    else:
        for name, (least, most) in (INTEGERS | NUMBERS).items():
            value = getattr(params, name)
            limit = (params.max_tokens or BIG) if name == "min_tokens" else most
            assert (value is None and name in OPTIONAL) or (not isinstance(value, bool) and least <= value <= limit)
        assert all(isinstance(text, str) and 0 < len(text) <= 256 for text in params.stop)
        assert all(type(token_id) is int for token_id in params.stop_token_ids)


def test_an_error_is_a_value_error_with_a_field() -> None:
    error = refused(temperature=3)
    assert isinstance(error, ValueError)
    assert (error.field, error.code) == ("temperature", None)
    assert str(error) == "temperature must be a number from 0 to 2, got 3"


# Prompt


@pytest.mark.parametrize(
    "fields",
    [{}, {"text": "a", "token_ids": (1,)}, {"text": "", "messages": ()}, {"token_ids": (), "messages": ()}, {"text": "", "token_ids": (), "messages": ()}],
)
def test_a_prompt_is_exactly_one_thing(fields: dict[str, Any]) -> None:
    error = refused_prompt(**fields)
    assert error.field == "prompt"
    assert all(name in str(error) for name in fields)


@pytest.mark.parametrize("fields", [{"text": "a"}, {"text": ""}, {"token_ids": [1, 2]}, {"messages": [{"role": "user", "content": "a"}]}])
def test_each_kind_of_prompt_is_legal(fields: dict[str, Any]) -> None:
    prompt = Prompt(**fields)
    ((name, value),) = fields.items()
    assert getattr(prompt, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": 3}, "prompt"),
        ({"text": b"bytes"}, "prompt"),
        ({"text": ["a"]}, "prompt"),
        ({"token_ids": "12"}, "prompt"),
        ({"token_ids": [True]}, "prompt"),
        ({"token_ids": [1.0]}, "prompt"),
        ({"token_ids": 3}, "prompt"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [3]}, "messages"),
        ({"messages": ["hello"]}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"text": "a", "tools": "search"}, "tools"),
        ({"text": "a", "tools": [1]}, "tools"),
        ({"text": "a", "template": [1]}, "template"),
        ({"text": "a", "template": None}, "template"),
        ({"text": "a", "add_special_tokens": 1}, "add_special_tokens"),
    ],
)
def test_prompts_of_the_wrong_type_are_refused(fields: dict[str, Any], field: str) -> None:
    assert refused_prompt(**fields).field == field


def test_prompts_do_not_share_a_template() -> None:
    assert Prompt(text="a").template is not Prompt(text="b").template


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().n = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        Prompt(text="a").text = "b"  # type: ignore[misc]


def test_a_refused_list_says_how_long_it_is_and_a_refused_bias_what_it_must_be() -> None:
    assert str(refused(allowed_token_ids=[])) == "allowed_token_ids must be 1 to 262144 token ids, got 0"
    assert str(refused(logit_bias={"a": 1})) == "logit_bias must be a mapping of token ids to numbers, got {'a': 1}"
