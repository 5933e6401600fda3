"""What came of one request, and the figures of many. Times are seconds of one monotonic clock; knows nothing of how requests travel.

Definitions, those of the common serving benchmarks: TTFT is the time from sending a request to its first token; in an open loop from when
it was to be sent. TPOT is (E2E - TTFT) / (tokens - 1). ITL is each gap between two deliveries of tokens. E2E ends with the last delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from .errors import BenchError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One answered request: sent < arrivals[0] <= .. <= arrivals[-1]."""

    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    sent: float
    arrivals: tuple[float, ...]
    """When tokens were delivered; a delivery may hold several."""
    due: float | None = None
    """When it was to be sent, in an open loop."""

    @property
    def began(self) -> float:
        """What latencies count from."""
        return self.sent if self.due is None else self.due

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.began

    @property
    def e2e(self) -> float:
        return self.arrivals[-1] - self.began

    @property
    def tpot(self) -> float | None:
        """None for a single token: nothing followed the first."""
        return (self.e2e - self.ttft) / (self.num_output_tokens - 1) if self.num_output_tokens > 1 else None

    @property
    def itl(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


Outcome = Trace | BenchError
"""A request that failed is an outcome too: an overloaded server is measured, not repaired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one repetition. Counts and rates are of the answered requests; `samples` are what percentiles are taken of."""

    num_requests: int
    num_failed: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    seconds: float
    """From when the first request began to the last token received."""
    samples: dict[str, list[float]]

    def rates(self) -> dict[str, float]:
        return {
            "seconds": self.seconds,
            "requests_per_second": self.num_requests / self.seconds,
            "output_tokens_per_second": self.num_output_tokens / self.seconds,
            "total_tokens_per_second": (self.num_prompt_tokens + self.num_output_tokens) / self.seconds,
        }


def figures(outcomes: Sequence[Outcome]) -> Figures:
    traces = [outcome for outcome in outcomes if isinstance(outcome, Trace)]
    if not traces:
        raise BenchError(f"all {len(outcomes)} requests failed, so there is nothing to measure. The first: {outcomes[0] if outcomes else 'there were none'}")
    late = [trace.sent - trace.due for trace in traces if trace.due is not None]
    return Figures(
        num_requests=len(traces),
        num_failed=len(outcomes) - len(traces),
        num_prompt_tokens=sum(trace.num_prompt_tokens for trace in traces),
        num_cached_tokens=sum(trace.num_cached_tokens for trace in traces),
        num_output_tokens=sum(trace.num_output_tokens for trace in traces),
        seconds=max(trace.arrivals[-1] for trace in traces) - min(trace.began for trace in traces),
        samples={
            "ttft": [trace.ttft for trace in traces],
            "tpot": [tpot for trace in traces if (tpot := trace.tpot) is not None],
            "itl": [gap for trace in traces for gap in trace.itl],
            "e2e": [trace.e2e for trace in traces],
            **({"late": late} if late else {}),
        },
    )
