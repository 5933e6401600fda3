"""The table of routes, and what the router says where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from . import fields, responses_body, tokens
from .admin import AbortBody, NoFields, admin_routes
from .bodies import ChatBody, CompletionBody
from .errors import ApiError
from .exchange import Exchange
from .fields import cut
from .forms import chat_form, completion_form
from .gate import ADMIN_PATHS, Gate
from .jobs import chat_job, completion_job
from .labels import RouteLabels
from .mounted import Mounted
from .openapi import OpenApi, Taken
from .pages import page_routes
from .responses_body import ResponsesBody
from .responses_routes import responses_routes
from .shared import Shared
from .tokens import DetokenizeBody, TokenizeBody, token_routes

OWN_PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/responses/{id}",
    "/v1/responses/{id}/input_items",
    "/v1/responses/{id}/cancel",
    "/tokenize",
    "/detokenize",
    "/v1/models",
    "/v1/models/{id}",
    "/health",
    "/ready",
    "/ping",
    "/version",
    "/load",
    "/metrics",
    "/openapi.json",
)
"""As a client writes them, in the order of the table. Those of the administrator, below `/admin`, are no part's to take either."""

BODIES: Mapping[str, type] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/admin/reset_prefix_cache": NoFields,
    "/admin/drain": NoFields,
    "/admin/resume": NoFields,
    "/admin/abort": AbortBody,
}
"""Path -> the msgspec struct of what is posted there: a POST route whose body is JSON has one here, and so its place in /openapi.json."""

BESIDE: Mapping[type, tuple[frozenset[str], Mapping[str, tuple[Any, ...]]]] = {
    CompletionBody: (fields.HARMLESS, fields.UNSUPPORTED),
    ChatBody: (fields.HARMLESS, fields.UNSUPPORTED),
    ResponsesBody: (responses_body.HARMLESS, responses_body.UNSUPPORTED),
    TokenizeBody: (frozenset(), tokens.REFUSED),
}
"""Fields that are no part of a struct: those without effect, and those that are refused, with the values that change nothing."""


def routes(shared: Shared) -> list[Route]:
    """This server's own."""
    return [
        Route("/v1/completions", Exchange(shared, read=completion_job, form=completion_form), methods=["POST"], name="completions"),
        Route("/v1/chat/completions", Exchange(shared, read=chat_job, form=chat_form), methods=["POST"], name="chat_completions"),
        *responses_routes(shared),
        *token_routes(shared),
        *page_routes(shared),
        Route("/openapi.json", OpenApi(shared.options, {path: Taken(struct, *BESIDE.get(struct, ())) for path, struct in BODIES.items()}).page),
        *admin_routes(shared),
    ]


def build_app(shared: Shared, mounted: Mounted) -> ASGIApp:
    table = [*routes(shared), *mounted.routes]
    gate = Middleware(Gate, options=shared.options, meters=shared.meters, labels=RouteLabels(table))
    app = Starlette(routes=table, middleware=[gate], exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False  # a redirect is neither an answer nor an error in OpenAI's form
    return app


def _http_error(request: Request, error: Exception) -> Response:
    """What the router says: no such path, or no such method there."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    path = cut(request.scope["path"])
    if error.status_code == 404:
        known = ", ".join(route.path_format for route in request.app.routes if not route.path_format.startswith(ADMIN_PATHS))
        refusal = ApiError(404, f"This server has no route {path}. Its routes: {known}", code="not_found")
    elif error.status_code == 405:
        allowed = headers["Allow"] = ", ".join(sorted(headers["Allow"].split(", ")))
        refusal = ApiError(405, f"{path} takes {allowed}, not {request.method[:20]}", code="method_not_allowed")
    else:
        refusal = ApiError(error.status_code, str(error.detail))
    return Response(refusal.body(), status_code=refusal.status, headers=headers, media_type="application/json")
