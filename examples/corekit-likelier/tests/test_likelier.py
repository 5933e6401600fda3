"""The laws of the kit, and what is this package's own: which of two wins, and what is refused."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from corekit_likelier import LIKELIER, Likelier, LikelierOptions

from corekit import assemble
from corekit.api import InvalidRequest
from corekit.testing import HttpRouteKit
from corekit.testing.fake_client import FakeClient

BODY = {"text": "One and one is", "between": [" two", "three"]}
SAYS_TWO = {
    "model": {"source": "none", "use": "scripted", "options": {"texts": ["two"]}},
    "engine": {"device": "cpu", "threads": 1},
    "tokenizer": {"use": "bytes"},
    "block_allocator": {"num_blocks": 16},
    "frontend": [],
}


class TestLikelier(HttpRouteKit):
    provider = LIKELIER
    examples: ClassVar[dict[str, Any]] = {"/likelier": BODY}


async def ask(client: Any, body: bytes) -> Any:
    async def read() -> bytes:
        return body

    (route,) = Likelier(LikelierOptions()).routes(client)
    return json.loads((await route.endpoint(SimpleNamespace(body=read))).body)


@pytest.mark.parametrize("between", [["two", "one"], ["one", "two"]])
def test_the_likelier_wins(between: list[str]) -> None:
    """On a model that always says "two"."""
    with assemble(SAYS_TWO, environ={}, progress=False) as assembly:
        said = asyncio.run(ask(assembly.client, json.dumps({"text": "One and one is ", "between": between}).encode()))
    assert said["likelier"] == "two"
    assert 0.5 < said["probability"] <= 1


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"text": ""}, "text"),
        ({"text": 7}, "text"),
        ({"between": ["one"]}, "between"),
        ({"between": ["one", 2]}, "between"),
        ({"between": ["one", ""]}, "between"),
        ({"between": ["same", "so"]}, "between"),
    ],
)
def test_what_is_refused_names_its_field(changed: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        asyncio.run(ask(FakeClient(), json.dumps({**BODY, **changed}).encode()))
    assert caught.value.field == field


def test_the_path_begins_with_a_slash() -> None:
    with pytest.raises(ValueError, match="path must begin with a slash, got 'likelier'"):
        LikelierOptions(path="likelier")
