"""The routes of `/v1/responses`. Answers are not kept, so those that read or change one say that there is none."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .errors import ApiError
from .exchange import Exchange
from .fields import cut
from .responses_body import responses_job
from .responses_form import ResponsesForm
from .shared import Shared


async def _nothing_is_kept(request: Request) -> Response:
    message = f"There is no response {cut(request.path_params['id'])!r}: this server keeps none. Send what was said as input of the next request"
    raise ApiError(404, message, code="response_not_found")


def responses_routes(shared: Shared) -> list[Route]:
    return [
        Route("/v1/responses", Exchange(shared, read=responses_job, form=ResponsesForm), methods=["POST"], name="responses"),
        Route("/v1/responses/{id}", _nothing_is_kept, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/input_items", _nothing_is_kept),
        Route("/v1/responses/{id}/cancel", _nothing_is_kept, methods=["POST"]),
    ]
