"""/openapi.json: a valid document, with every route, and bounds that are those of the server, not wider and not narrower."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from corekit_openai_http.app import BODIES, OWN_PATHS
from http_live import MODEL, Live, PlainClient, check_error

from corekit.api import Route

DOCS = Path(__file__).parents[2] / "docs"
KEY, ADMIN = {"authorization": "Bearer users-key"}, {"authorization": "Bearer admins-key"}
WHOLE: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104, 105]},
    "/admin/reset_prefix_cache": {},
    "/admin/drain": {},
    "/admin/resume": {},
    "/admin/abort": {"all": True},
}
NEEDS: dict[tuple[str, str], dict[str, Any]] = {
    ("/v1/chat/completions", "top_logprobs"): {"logprobs": True},
    ("/v1/chat/completions", "stream_interval"): {"stream": True},
    ("/v1/completions", "stream_interval"): {"stream": True},
    ("/v1/completions", "min_tokens"): {"max_tokens": 2**31 - 1},
    ("/v1/responses", "top_logprobs"): {"include": ["message.output_text.logprobs"]},
}
"""What a field is refused without."""


async def answer(request: Any) -> Any:
    raise NotImplementedError


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    started = Live(PlainClient(), api_keys=("users-key",), admin_key="admins-key", max_n=3)
    started.frontend.add_routes([Route(path="/mine/{number:int}/{name}", methods=("GET", "POST"), endpoint=answer)], of="test-part")
    with started:
        yield started


@pytest.fixture(scope="module")
def document(live: Live) -> dict[str, Any]:
    response = live.http.get("/openapi.json", headers=KEY)
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    return dict(response.json())


def validator(document: dict[str, Any], path: str) -> jsonschema.Draft202012Validator:
    (content,) = document["paths"][path]["post"]["requestBody"]["content"].values()
    return jsonschema.Draft202012Validator({**content["schema"], "components": document["components"]})


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_it_is_behind_the_key(live: Live) -> None:
    assert check_error(live.http.get("/openapi.json"))["code"] == "invalid_api_key"
    assert live.http.get("/openapi.json", headers=ADMIN).status_code == 401


def test_the_document_holds_together(document: dict[str, Any]) -> None:
    """Version, relative servers, schemas that are schemas, references that lead somewhere, ids that are there once."""
    assert document["openapi"] == "3.1.0"
    assert document["info"].keys() >= {"title", "version"}
    assert [server["url"] for server in document["servers"]] == ["/"]
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    for reference in references(document):
        at: Any = document
        for part in reference.removeprefix("#/").split("/"):
            at = at[part]
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for path, item in document["paths"].items():
        for operation in item.values():
            assert {one["name"] for one in operation.get("parameters", ())} == set(re.findall(r"\{(\w+)\}", path))


def test_every_route_is_there_with_its_methods(live: Live, document: dict[str, Any]) -> None:
    assert set(OWN_PATHS) | {path for path in BODIES if path.startswith("/admin/")} | {"/mine/{number}/{name}"} == set(document["paths"])
    for path, item in document["paths"].items():
        if not path.startswith("/mine"):
            allowed = live.http.request("PATCH", path.replace("{id}", MODEL), headers=ADMIN if path.startswith("/admin/") else KEY).headers["allow"]
            assert {method.lower() for method in allowed.split(", ")} - {"head"} <= set(item), path
    assert document["paths"]["/mine/{number}/{name}"]["get"]["parameters"][0]["schema"] == {"type": "integer"}


def test_security_says_which_key_opens_what(document: dict[str, Any]) -> None:
    for path, item in document["paths"].items():
        for operation in item.values():
            key = "open" if path in ("/health", "/ready", "/ping", "/version") else "admin" if path.startswith("/admin/") else "key"
            assert operation.get("security", document["security"]) == ([] if key == "open" else [{key: []}]), path


def test_without_keys_nothing_is_secured() -> None:
    with Live(PlainClient()) as live:
        found = live.http.get("/openapi.json").json()
    assert (found["security"], found["components"]["securitySchemes"]) == ([], {})
    assert not [path for path in found["paths"] if path.startswith("/admin")]


def test_every_body_has_its_schema(live: Live, document: dict[str, Any]) -> None:
    """All that are read: what is whole is valid and answered, what lacks a field is neither."""
    posts = {path for path, item in document["paths"].items() if "requestBody" in item.get("post", {})}
    assert posts == set(BODIES) == set(WHOLE)
    for path, body in WHOLE.items():
        headers = ADMIN if path.startswith("/admin/") else KEY
        validator(document, path).validate(body)
        assert live.http.post(path, json=body, headers=headers).status_code == 200, path
        assert not validator(document, path).is_valid({**body, "no_such_field": 1})
        assert live.http.post(path, json={**body, "no_such_field": 1}, headers=headers).status_code == 400, path
        for name in document["components"]["schemas"][BODIES[path].__name__].get("required", ()):
            without = {field: value for field, value in body.items() if field != name}
            assert not validator(document, path).is_valid(without)
            assert live.http.post(path, json=without, headers=headers).status_code == 400, (path, name)


def edges(schema: dict[str, Any]) -> Iterator[tuple[Any, bool]]:
    """Values at the bounds of one type, and whether they are inside."""
    kind = schema.get("type")
    if kind in ("integer", "number"):
        step = 1 if kind == "integer" else 1e-3
        for keyword, sign in (("minimum", -1), ("exclusiveMinimum", -1), ("maximum", 1)):
            if keyword in schema:
                edge = schema[keyword]
                yield (edge - sign * step, True) if keyword == "exclusiveMinimum" else (edge, True)
                yield (edge, False) if keyword == "exclusiveMinimum" else (edge + sign * step, False)
    if kind == "string" and "maxLength" in schema:
        yield from ((("s" * schema["maxLength"]), True), ("s" * (schema["maxLength"] + 1), False), ("", False))
    if kind == "array" and schema.get("maxItems", 2**18) < 2**18 and "maxItems" in schema:
        one: Any = {"string": "s", "integer": 1, "object": {"role": "user", "content": "s"}}[schema["items"]["type"]]
        yield from (([one] * schema["maxItems"], True), ([one] * (schema["maxItems"] + 1), False))
    if kind == "array" and schema.get("minItems"):
        yield [], False
    if kind == "object" and "maxProperties" in schema:
        bounds = schema["additionalProperties"]
        for value, inside in ((bounds["minimum"], True), (bounds["maximum"], True), (bounds["minimum"] - 1, False), (bounds["maximum"] + 1, False)):
            yield {"1": value}, inside


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses"])
def test_bounds_are_those_of_the_server(live: Live, document: dict[str, Any], path: str) -> None:
    """Just inside is no fault of that field, just outside is 400 with its name; the schema says the same of both."""
    tried = []
    for field, schema in document["components"]["schemas"][BODIES[path].__name__]["properties"].items():
        for part in schema.get("anyOf", [schema]):
            for value, inside in edges(part):
                body = {**WHOLE[path], **NEEDS.get((path, field), {}), field: value}
                assert validator(document, path).is_valid(body) is inside, (field, value)
                answered = live.http.post(path, json=body, headers=KEY)
                blamed = answered.status_code == 400 and (check_error(answered)["param"] or "").startswith(field)
                fits = "context" not in answered.text[:400]  # the model's own bound comes later
                assert (not blamed or not fits) if inside else answered.status_code == 400 and blamed, (field, value, answered.text[:300])
                tried.append(field)
    assert len(set(tried)) > 15


@pytest.mark.parametrize("path", [path for path in WHOLE if not path.startswith("/admin")])
def test_fields_beside_the_struct(live: Live, document: dict[str, Any], path: str) -> None:
    """What is accepted without effect, and the one value of the rest, are valid and answered; another value is neither."""
    fields = set(BODIES[path].__struct_fields__)  # type: ignore[attr-defined]
    for field, schema in document["components"]["schemas"][BODIES[path].__name__]["properties"].items():
        if field in fields:
            continue
        for value in schema.get("enum", ["anything"]):
            validator(document, path).validate({**WHOLE[path], field: value})
            assert live.http.post(path, json={**WHOLE[path], field: value}, headers=KEY).status_code == 200, (field, value)
        if "enum" in schema:
            assert not validator(document, path).is_valid({**WHOLE[path], field: "another"})
            assert live.http.post(path, json={**WHOLE[path], field: "another"}, headers=KEY).status_code == 400, field


def examples() -> Iterator[tuple[str, str, Any]]:
    """Bodies that pages show with curl, and where they are sent."""
    for page in sorted([*DOCS.rglob("*.md"), DOCS.parent / "README.md"]):
        for command in re.findall(r"^curl .*?(?<!\\)$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            path, body = re.search(r"127\.0\.0\.1:8000(/[\w/]+)", command), re.search(r"-d '(\{.*?\})'", command, re.DOTALL)
            if path and body and path[1] in WHOLE:
                yield page.name, path[1], json.loads(body[1])


def test_the_examples_of_the_pages_are_valid(document: dict[str, Any]) -> None:
    found = list(examples())
    assert found
    for page, path, body in found:
        faults = [fault.message for fault in validator(document, path).iter_errors(body)]
        assert not faults, (page, path, faults)


def test_each_route_names_the_errors_that_it_has(document: dict[str, Any]) -> None:
    said = {(path, method): operation["responses"].keys() for path, item in document["paths"].items() for method, operation in item.items()}
    assert {path for (path, _), statuses in said.items() if "401" not in statuses} == {"/health", "/ready", "/ping", "/version"}
    assert {path for (path, _), statuses in said.items() if "409" in statuses} == {"/admin/resume"}
    assert {"400", "408", "413", "415", "429", "501", "503"} <= said["/v1/completions", "post"]
    assert not {"413", "415", "429", "501"} & said["/v1/models", "get"]
