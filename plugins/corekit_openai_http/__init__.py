"""OpenAI-compatible HTTP frontend. This module is its entry point: importing it loads neither a web framework nor torch."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import API_VERSION, BuildContext, Frontend, Provider, hookimpl

from .options import HttpOptions

__all__ = ["HttpOptions", "corekit_register_frontends"]


def _build(context: BuildContext, options: HttpOptions | None) -> Frontend:
    from .frontend import OpenAiHttp

    return OpenAiHttp(options or HttpOptions())


@hookimpl
def corekit_register_frontends() -> Sequence[Provider[Frontend]]:
    return (
        Provider(
            name="openai-http",
            api=API_VERSION,
            summary="OpenAI-compatible HTTP: models, completions, chat completions, streaming, health and metrics",
            build=_build,
            options=HttpOptions,
        ),
    )
