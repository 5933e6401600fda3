"""A route that says which of two continuations the model finds likelier. Plugins are listed by importing this: keep it light."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from corekit.api import EngineClient, HttpRoute, InvalidRequest, Prompt, Provider, Route, SamplingParams, hookimpl


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelierOptions:
    """The keys of [http_route.options]."""

    path: str = "/likelier"
    """Where it is; it begins with a slash."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path must begin with a slash, got {self.path!r}")


class Likelier:
    """Draws one token between the first tokens of both. What the engine refuses, the frontend answers."""

    def __init__(self, options: LikelierOptions) -> None:
        self._path = options.path

    def routes(self, client: EngineClient) -> Sequence[Route]:
        self._client = client
        return [Route(path=self._path, methods=("POST",), endpoint=self.answer)]

    async def answer(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        text, between = _read(await request.body())
        ids = [self._first_id(one) for one in between]
        if ids[0] == ids[1]:
            raise InvalidRequest("between must be two texts that begin with different tokens", field="between")
        chances = [math.exp(await self._logprob(text, token_id)) for token_id in ids]
        best = 0 if chances[0] >= chances[1] else 1
        return JSONResponse({"likelier": between[best], "probability": chances[best] / (sum(chances) or 1.0)})

    def _first_id(self, text: str) -> int:
        ids = self._client.tokenizer.encode(text, add_special=False)
        if not ids:
            raise InvalidRequest(f"between holds {text!r}, which has no token", field="between")
        return ids[0]

    async def _logprob(self, text: str, token_id: int) -> float:
        """Of this token after the text. The second look finds the text in the prefix cache."""
        params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=0, allowed_token_ids=(token_id,))
        async with aclosing(self._client.generate(Prompt(text=text), params)) as news:
            async for output in news:
                for sample in output.outputs:
                    if sample.logprobs:
                        return sample.logprobs[0].logprob
        return -math.inf


def _read(body: bytes) -> tuple[str, tuple[str, str]]:
    """The two fields. Raises InvalidRequest, which frontends answer with 400."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise InvalidRequest('the body must be a JSON object such as {"text": "One and one is", "between": [" two", " three"]}')
    text, between = fields.get("text"), fields.get("between")
    if not isinstance(text, str) or not text:
        raise InvalidRequest("text must be a string, and not empty", field="text")
    if not isinstance(between, list) or len(between) != 2 or not all(isinstance(one, str) for one in between):
        raise InvalidRequest("between must be an array of two strings", field="between")
    return text, (between[0], between[1])


LIKELIER: Provider[HttpRoute] = Provider(
    name="likelier",
    api=1,
    summary="which of two continuations of a text the model finds likelier",
    build=lambda context, options: Likelier(options or LikelierOptions()),
    options=LikelierOptions,
)


@hookimpl
def corekit_register_http_routes() -> Sequence[Provider[HttpRoute]]:
    return [LIKELIER]
