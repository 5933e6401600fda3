"""Bundled plugin: the observer `opentelemetry`, one span a request. This module is its entry point; it imports no SDK."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

from corekit.api import API_VERSION, BuildContext, Observer, Provider, hookimpl

from .options import OpenTelemetryOptions

__all__ = ["OpenTelemetryOptions", "corekit_register_observers"]


def _refuse(context: BuildContext) -> Sequence[str]:
    """The SDK is not among what corekit needs to run."""
    needed = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
    missing = [name for name in needed if not _is_installed(name)]
    return [f"{' and '.join(missing)} cannot be imported: pip install 'corekit[otel]'"] if missing else []


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _build(context: BuildContext, options: OpenTelemetryOptions | None) -> Observer:
    from .spans import RequestSpans, open_tracer

    options = options or OpenTelemetryOptions()
    named = options.model_name or (context.source.name if context.source is not None else "")
    return RequestSpans(open_tracer(options), model_name=named or "unknown")


@hookimpl
def corekit_register_observers() -> Sequence[Provider[Observer]]:
    return (
        Provider(
            name="opentelemetry",
            api=API_VERSION,
            summary="one OpenTelemetry span a request, sent over OTLP: queue, prefill, decode, tokens; never text",
            build=_build,
            options=OpenTelemetryOptions,
            refuse=_refuse,
        ),
    )
