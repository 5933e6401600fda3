"""What a user may set for the spans, and the bounds. Knows no SDK."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from corekit.api import CorekitError


class OptionsError(CorekitError, ValueError):
    """Options of this observer are out of bounds; the message lists all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTelemetryOptions:
    """Plain values as written in TOML, each within its bounds. Raises OptionsError with every problem at once."""

    endpoint: str = "http://127.0.0.1:4318/v1/traces"
    """Where spans are sent: OTLP over HTTP, the whole URL."""
    headers: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Sent with them, such as `{authorization = "env:COLLECTOR_KEY"}`."""
    service_name: str = "corekit"
    """What the service is called there."""
    model_name: str = ""
    """What the model is called there; empty: by its source."""
    sample_ratio: float = 1.0
    """Share of the requests that get a span, 0 to 1."""
    max_waiting: int = 2048
    """Most requests that wait to be sent, 16 to 2**20: what is more is dropped, so that a slow collector costs spans and never answers."""
    timeout_seconds: float = 5.0
    """Longest time for one sending, and for the last one when the process ends; 0.1 to 60."""

    def __post_init__(self) -> None:
        found = [
            *_bounded("sample_ratio", self.sample_ratio, 0, 1),
            *_bounded("max_waiting", self.max_waiting, 16, 2**20),
            *_bounded("timeout_seconds", self.timeout_seconds, 0.1, 60),
        ]
        if not _is_url(self.endpoint):
            found.append(f'endpoint must be a URL such as "http://127.0.0.1:4318/v1/traces", got {self.endpoint[:100]!r}')
        if not self.service_name.strip():
            found.append("service_name must not be empty")
        if any(not (name + value).isprintable() or not (name + value).isascii() or not name for name, value in self.headers.items()):
            found.append("headers must be printable ASCII, with names that are not empty (their values are not shown)")
        if found:
            raise OptionsError("out of bounds: " + "; ".join(found) + ". Correct them in [observer.options]")


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def _bounded(name: str, value: float, least: float, most: float) -> list[str]:
    if isinstance(value, bool) or not math.isfinite(value) or not least <= value <= most:
        return [f"{name} must be from {least:g} to {most:g}, got {value!r}"]
    return []
