"""One line of the log for one request: whose, how long, how many tokens. Never what was asked or answered, nor the `user` of a body."""

from __future__ import annotations

from .log import LOG
from .stopwatch import Stopwatch


def log_access(*, request_id: str, method: str, route: str, status: int, seconds: float, tenant: str, stopwatch: Stopwatch | None, left: bool) -> None:
    """left: the client did not wait for the end. A line for people, and its parts as fields for machines."""
    fields = {"request_id": request_id, "method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
    words = [method, route, str(status), f"{seconds:.3f} s"]
    if tenant:
        fields["tenant"] = tenant
        words.append(f"for {tenant}")
    if stopwatch is not None and stopwatch.usage is not None:
        usage = stopwatch.usage()
        cached, first = usage.prompt_tokens_details.cached_tokens, stopwatch.first_seconds
        reason = ",".join(sorted(stopwatch.finish_reasons)) if stopwatch.complete else "abort" if left else "error"
        fields |= {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": cached,
            "output_tokens": usage.completion_tokens,
            "first_token_seconds": None if first is None else round(first, 4),
            "finish_reason": reason,
        }
        words.append(f"{usage.prompt_tokens} prompt tokens ({cached} cached), {usage.completion_tokens} of output")
        words.append("no token" if first is None else f"first after {first:.3f} s")
        words.append(reason)
    LOG.info("%s", ", ".join([" ".join(words[:4]), *words[4:], f"id {request_id}"]), extra=fields)
