"""docs/http.md says what the frontend does: routes, fields, defaults, bounds."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from corekit_openai_http import HttpOptions
from corekit_openai_http.app import routes
from corekit_openai_http.bodies import Asked, ChatBody, Common, CompletionBody
from corekit_openai_http.drain import Drain
from corekit_openai_http.errors import ApiError
from corekit_openai_http.fields import HARMLESS, UNSUPPORTED
from corekit_openai_http.jobs import chat_job, completion_job
from corekit_openai_http.messages import MAX_MESSAGES
from corekit_openai_http.metrics import Meters
from corekit_openai_http.requests import Job
from corekit_openai_http.shared import Shared
from http_live import MODEL, Live, PlainClient
from http_page import section, table

from corekit.api import InvalidRequest
from corekit.api.types import MAX_SALT_CHARS, MAX_STOP_CHARS, MAX_STOP_IDS, MAX_STOPS

CLIENT = PlainClient()
OPTIONS = HttpOptions()
BOTH, COMPLETIONS, CHAT = "Fields of both", "Fields of `/v1/completions`", "Fields of `/v1/chat/completions`"


def complete(fields: dict[str, Any]) -> Job:
    return completion_job({"model": MODEL, "prompt": "hi", **fields}, CLIENT.model, OPTIONS)


def chat(fields: dict[str, Any]) -> Job:
    return chat_job({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **fields}, CLIENT.model, OPTIONS)


DOCUMENTED = [(complete, BOTH), (chat, BOTH), (complete, COMPLETIONS), (chat, CHAT)]
ROWS = [pytest.param(ask, field, *cells, id=f"{ask.__name__}-{field}") for ask, heading in DOCUMENTED for field, cells in table(heading).items()]


def test_every_route_with_its_method_and_whether_it_needs_a_key() -> None:
    async def paths() -> list[str]:
        return [route.path_format for route in routes(Shared(CLIENT, OPTIONS, Meters(OPTIONS), Drain()))]

    found = table("Routes")
    assert list(found) == asyncio.run(paths())
    with Live(CLIENT, api_keys=("secret",)) as live:
        for path, method, key in ((path, method, key) for path, (methods, key, _) in found.items() for method in methods.split(", ")):
            asked = {"content": b"{}", "headers": {"content-type": "application/json"}} if method == "POST" else {}
            expected = {"key": 401, "open": 200}[key]
            assert live.http.request(method, path.replace("{id}", MODEL), **asked).status_code == expected, path
            live.http.headers["authorization"] = "Bearer secret"
            served = 404 if path.startswith("/v1/responses/") else 400 if key == "key" and method == "POST" else 200
            assert live.http.request(method, path.replace("{id}", MODEL), **asked).status_code == served, path
            if method == "GET":
                assert live.http.head(path.replace("{id}", MODEL)).status_code == served
            del live.http.headers["authorization"]


def test_every_field() -> None:
    own = {kind: set(kind.__struct_fields__) - set(Common.__struct_fields__) | {"max_tokens"} for kind in (CompletionBody, ChatBody)}
    assert set(table(BOTH)) == set(Common.__struct_fields__) - {"max_tokens"}
    assert set(table(COMPLETIONS)) == own[CompletionBody]
    assert set(table(CHAT)) == own[ChatBody]


@pytest.mark.parametrize(("ask", "field", "default", "values"), ROWS)
def test_defaults(ask: Callable[[dict[str, Any]], Job], field: str, default: str, values: str) -> None:
    """A field with its default is the same request as one without it."""
    if default == "required":
        with pytest.raises(ApiError, match=f"^{field} is required"):
            (completion_job if ask is complete else chat_job)({name: "x" for name in ("model",) if name != field}, CLIENT.model, OPTIONS)
        return
    value, absent = json.loads(default.strip("`")), ask({})
    if value is None:
        assert getattr(absent.params, field, getattr(absent, field, None)) is None
    else:
        assert ask({field: value}) == absent


BOUNDED = [row for row in ROWS if re.match(r"(integer|number) (from|above) ", str(row.values[3]))]


@pytest.mark.parametrize(("ask", "field", "default", "values"), BOUNDED)
def test_bounds(ask: Callable[[dict[str, Any]], Job], field: str, default: str, values: str) -> None:
    found = re.match(r"(integer|number) (from|above) (-?[\d.]+) to (-?\d+|`max_tokens`)", values)
    assert found is not None, values
    beside = {"logprobs": True} if field == "top_logprobs" else {"max_tokens": 16} if field == "min_tokens" else {}
    least, most = json.loads(found[3]), int(found[4]) if found[4] != "`max_tokens`" else beside["max_tokens"]
    step = 1 if found[1] == "integer" else 1e-6
    inside = [least if found[2] == "from" else least + step, most]
    for value in inside:
        ask({**beside, field: value})
    for value in (least - step if found[2] == "from" else least, most + step, "1", True):
        with pytest.raises((ApiError, InvalidRequest), match=field):
            ask({**beside, field: value})


def test_every_field_that_is_a_number_has_bounds_on_the_page() -> None:
    kinds = [pair for body in (Asked, Common, CompletionBody, ChatBody) for pair in body.__annotations__.items()]
    assert {row.values[1] for row in BOUNDED} == {field for field, kind in kinds if kind in ("int | None", "float | None")}


@pytest.mark.parametrize(
    ("heading", "field", "numbers"),
    [
        (BOTH, "stop", [MAX_STOPS, 1, MAX_STOP_CHARS]),
        (BOTH, "stop_token_ids", [MAX_STOP_IDS]),
        (COMPLETIONS, "prompt", [OPTIONS.max_prompts]),
        (CHAT, "messages", [1, MAX_MESSAGES]),
        (BOTH, "request_id", [1, 64]),
        (BOTH, "cache_salt", [1, MAX_SALT_CHARS]),
    ],
)
def test_sizes(heading: str, field: str, numbers: list[int]) -> None:
    assert [int(number) for number in re.findall(r"\b\d+\b", table(heading)[field][1])] == numbers


def test_fields_that_are_accepted_without_effect_or_refused() -> None:
    text = section("Other fields")
    harmless = re.search(r"without effect, whatever the value: (.*)\.\n", text)
    assert harmless is not None
    assert set(re.findall(r"`(\w+)`", harmless[1])) == HARMLESS
    neutral = {name: json.loads(value) for name, value in re.findall(r"^\| `(\w+)` \| `(.*)` \|$", text, re.MULTILINE)}
    assert neutral == {name: values[0] for name, values in UNSUPPORTED.items() if values}
    refused = text.partition("Refused with any value:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", refused)) == {name for name, values in UNSUPPORTED.items() if not values}
