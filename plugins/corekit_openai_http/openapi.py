"""What this server takes, as an OpenAPI document: made of the table of routes and of the structs that bodies are read into. Knows no endpoint's meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.convertors import FloatConvertor, IntegerConvertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .field_limits import OF_TYPE, field_limits
from .gate import ADMIN_PATHS, OPEN_PATHS
from .options import HttpOptions
from .software import corekit_version

Json = dict[str, Any]
_REFERENCE = "#/components/schemas/{name}"
_ERRORS: Mapping[str, str] = {
    "400": "The request is wrong: `param` names the field",
    "401": "The key is missing or wrong",
    "404": "No such model, or nothing of that name",
    "405": "The route does not take this method",
    "408": "The request took too long to arrive or to answer",
    "409": "Too late: the server stops",
    "413": "The body is too large",
    "415": "The body is not application/json",
    "429": "Too many requests with this key: try again after `retry-after`",
    "431": "The head is too large",
    "500": "The request failed",
    "501": "The body has a transfer coding other than chunked",
    "503": "Loading, overloaded, draining or dead: try again after `retry-after`",
}
_BODY_ERRORS = frozenset({"400", "404", "408", "413", "415", "429", "500", "501", "503"})
"""Of routes that take one."""
_OTHER_ERRORS = frozenset({"404", "405", "431", "500", "503"})
"""Of routes that take none."""
_RESUME = f"{ADMIN_PATHS}resume"
"""The one route that may come too late."""
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_KINDS: Mapping[type, str] = {IntegerConvertor: "integer", FloatConvertor: "number"}


@dataclass(frozen=True, slots=True)
class Taken:
    """A body: the struct, and what it accepts beside: fields without effect, and fields with the values that mean nothing."""

    struct: type
    harmless: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


class OpenApi:
    """One page, made when it is first asked for."""

    def __init__(self, options: HttpOptions, bodies: Mapping[str, Taken]) -> None:
        self._options = options
        self._bodies = bodies
        self._page: bytes | None = None

    async def page(self, request: Request) -> Response:
        if self._page is None:
            self._page = msgspec.json.encode(document(request.app.routes, self._bodies, self._options))
        return Response(self._page, media_type="application/json")


def document(table: Sequence[Route], bodies: Mapping[str, Taken], options: HttpOptions) -> Json:
    """The whole document."""
    schemas = _schemas(list(bodies.values()), options)
    schemes: Json = {"key": {"type": "http", "scheme": "bearer"}} if options.keys or options.api_keys else {}
    if options.admin_key:
        schemes["admin"] = {"type": "http", "scheme": "bearer"}
    paths: Json = {}
    for route in table:
        paths.setdefault(route.path_format, {}).update(dict(_operations(route, bodies.get(route.path_format), schemes)))
    return {
        "openapi": "3.1.0",
        "info": {"title": "corekit", "version": corekit_version(), "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"key": []}] if "key" in schemes else [],
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, **schemas},
            "responses": {f"Error{status}": _error(text) for status, text in _ERRORS.items()},
            "securitySchemes": schemes,
        },
    }


def _error(text: str) -> Json:
    return {"description": text, "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(name="Error")}}}}


def _operations(route: Route, body: Taken | None, schemes: Json) -> Iterator[tuple[str, Json]]:
    for method in sorted((route.methods or set()) - {"HEAD"}):
        operation: Json = {"operationId": _id(method, route.path_format)}
        if route.param_convertors:
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": _KINDS.get(type(convertor), "string")}}
                for name, convertor in route.param_convertors.items()
            ]
        takes = body is not None and method == "POST"
        if body is not None and takes:
            required = any(one.required for one in msgspec.structs.fields(body.struct))
            schema = {"$ref": _REFERENCE.format(name=body.struct.__name__)}
            operation["requestBody"] = {"required": required, "content": {"application/json": {"schema": schema}}}
        operation["responses"] = _responses(body if takes else None, route.path)
        if route.path in OPEN_PATHS:
            operation["security"] = []
        elif route.path.startswith(ADMIN_PATHS) and "admin" in schemes:
            operation["security"] = [{"admin": []}]
        yield method.lower(), operation


def _responses(body: Taken | None, path: str) -> Json:
    content: Json = {"application/json": {"schema": {"type": "object"}}}
    if body is None:
        content = {"*/*": {}}
    elif "stream" in {one.name for one in msgspec.structs.fields(body.struct)}:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    said = _OTHER_ERRORS if body is None else _BODY_ERRORS | _OTHER_ERRORS
    if path not in OPEN_PATHS:
        said |= {"401"}
    if path == _RESUME:
        said |= {"409"}
    return {"200": {"description": "The answer", "content": content}, **{status: {"$ref": f"#/components/responses/Error{status}"} for status in sorted(said)}}


def _id(method: str, path: str) -> str:
    return "_".join([method.lower(), *re.findall(r"\w+", path)])


def _schemas(bodies: Sequence[Taken], options: HttpOptions) -> Json:
    """Those of the structs, with the bounds of their fields and with the fields that are accepted beside."""
    _, found = msgspec.json.schema_components([body.struct for body in bodies], ref_template=_REFERENCE)
    limits = field_limits(options)
    for struct, schema in found.items():
        for name, property in schema.get("properties", {}).items():
            _bound(property, limits.get(f"{struct}.{name}") or limits.get(name, {}))
    for body in bodies:
        properties = found[body.struct.__name__].setdefault("properties", {})
        for name in sorted(body.harmless):
            properties.setdefault(name, {"description": "Accepted without effect."})
        for name, values in sorted(body.neutral.items()):
            if values:
                properties.setdefault(name, {"enum": [*values, None], "description": "Accepted with the value that changes nothing."})
    return dict(found)


def _bound(schema: Json, limits: Mapping[str, Any]) -> None:
    for part in schema.get("anyOf", (schema,)):
        part.update({keyword: value for keyword, value in limits.items() if keyword in OF_TYPE.get(str(part.get("type")), ())})
