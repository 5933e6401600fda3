"""What a user may set for this frontend, and the bounds. Knows nothing of sockets; keys arrive resolved."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from corekit.api import CorekitError

from .keys import key_problems


class OptionsError(CorekitError, ValueError):
    """Options of this frontend are out of bounds; the message lists all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """Plain values as written in TOML, each within its bounds. Raises OptionsError with every problem at once."""

    host: str = "127.0.0.1"
    """Address to listen on. Anything but loopback should come with `keys`."""
    port: int = 8000
    """0 to 65535; 0: any free port, reported at the start."""
    api_keys: tuple[str, ...] = field(default=(), repr=False, metadata={"secret": True})
    """Accepted bearer tokens without names of their own: they are called key-1, key-2 and so on. Without these and `keys` there is no authentication."""
    keys: dict[str, str] = field(default_factory=dict, repr=False, metadata={"secret": True})
    """Accepted bearer tokens by name, such as `{alice = "env:ALICE_KEY", bob = "file:/run/secrets/bob"}`; the name is the request's tenant."""
    admin_key: str = field(default="", repr=False, metadata={"secret": True})
    """Opens the routes below `/admin`, and nothing else; empty: there are none."""
    salt_by_tenant: bool = False
    """The key is part of every `cache_salt`, also of requests that give none: cached prefixes are shared within a tenant only."""
    served_model_names: tuple[str, ...] = ()
    """Names that requests may use instead of the model's own; the first is the one shown."""
    max_body_bytes: int = 4 * 2**20
    """Largest request, 1024 to 2**30."""
    max_n: int = 16
    """Most samples of one request, 1 to 128."""
    max_prompts: int = 128
    """Most prompts in one completions request, 1 to 2048."""
    max_choices: int = 128
    """Most choices of one answer: prompts times `n`; 1 to 2**18."""
    max_answer_entries: int = 2**22
    """Most entries of one answer that is not streamed: choices times `max_tokens` (at most the context) times 1 + logprobs; 1024 to 2**32."""
    max_requests_per_key: int = 0
    """Most requests of one key in flight, 0 to 2**20, from their head on; one more is answered with 429. 0: no limit."""
    first_token_seconds: float = 300.0
    """Longest wait for the first token of an answer, 0 to 86400, from the end of the request's body; 0: no limit."""
    total_seconds: float = 3600.0
    """Longest time that an answer may take, 0 to 604800, from the end of the request's body; 0: no limit."""
    keep_alive_seconds: float = 15.0
    """A comment is sent on a stream that was silent so long, 0 to 3600; 0: never."""
    body_seconds: float = 60.0
    """Longest time that the body of a request may take to arrive, 0.1 to 3600."""
    idle_seconds: float = 75.0
    """A connection is closed when no request begins for so long, 0.1 to 3600."""
    head_seconds: float = 20.0
    """Longest time that the head of a request may take to arrive, from its first byte; 0.1 to 3600."""
    refused_body_seconds: float = 5.0
    """How long the rest of a body is still read after its request was refused, 0.1 to 3600."""
    shutdown_seconds: float = 5.0
    """How long requests in flight may go on after the server was told to stop, 0 to 3600."""
    log_requests: bool = False
    """One line per request: route, status, times, tokens, finish reason, tenant, id. Never prompts."""
    metric_aliases: Literal["none", "vllm"] = "none"
    """`vllm`: `/metrics` has what vLLM has too under its `vllm:` name, and under the older one where it was renamed."""

    def __post_init__(self) -> None:
        found = [
            *_bounded("port", self.port, 0, 65535),
            *_bounded("max_body_bytes", self.max_body_bytes, 1024, 2**30),
            *_bounded("max_n", self.max_n, 1, 128),
            *_bounded("max_prompts", self.max_prompts, 1, 2048),
            *_bounded("max_choices", self.max_choices, 1, 2**18),
            *_bounded("max_answer_entries", self.max_answer_entries, 1024, 2**32),
            *_bounded("max_requests_per_key", self.max_requests_per_key, 0, 2**20),
            *_bounded("first_token_seconds", self.first_token_seconds, 0, 86400),
            *_bounded("total_seconds", self.total_seconds, 0, 604800),
            *_bounded("keep_alive_seconds", self.keep_alive_seconds, 0, 3600),
            *_bounded("body_seconds", self.body_seconds, 0.1, 3600),
            *_bounded("idle_seconds", self.idle_seconds, 0.1, 3600),
            *_bounded("head_seconds", self.head_seconds, 0.1, 3600),
            *_bounded("refused_body_seconds", self.refused_body_seconds, 0.1, 3600),
            *_bounded("shutdown_seconds", self.shutdown_seconds, 0, 3600),
        ]
        if self.metric_aliases not in ("none", "vllm"):
            found.append(f'metric_aliases must be "none" or "vllm", got {self.metric_aliases!r}')
        if not self.host:
            found.append('host must not be empty; "0.0.0.0" listens on every address')
        found += key_problems(self.keys, self.api_keys, self.admin_key)
        if self.salt_by_tenant and not (self.keys or self.api_keys):
            found.append("salt_by_tenant needs keys: without them nobody can tell tenants apart")
        if self.max_requests_per_key and not (self.keys or self.api_keys):
            found.append("max_requests_per_key needs keys: without them nobody can tell whose a request is")
        if any(not name.strip() for name in self.served_model_names):
            found.append("served_model_names must not be empty strings")
        if found:
            raise OptionsError("out of bounds: " + "; ".join(found) + ". Correct them in [frontend.options]")


def _bounded(name: str, value: float, least: float, most: float) -> list[str]:
    if isinstance(value, bool) or not math.isfinite(value) or not least <= value <= most:
        return [f"{name} must be from {least:g} to {most:g}, got {value!r}"]
    return []
