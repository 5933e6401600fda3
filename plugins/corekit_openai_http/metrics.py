"""The page /metrics: what the engine counts, what was heard of it, and what this frontend sees. Labels come from fixed sets only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from corekit.api import EngineClient

from .aliases import vllm_aliases
from .drain import Drain
from .engine_counts import engine_counts
from .engine_ears import EngineEars
from .http_counts import HttpCounts
from .loop_lag import LoopLag
from .options import HttpOptions
from .requests import served_names
from .software import corekit_version
from .stopwatch import Stopwatch, Times

_END = b"# EOF\n"
"""How OpenMetrics ends."""


class Meters:
    """One per frontend: two servers in one process do not share counts. Made before there is an engine, which is attached later."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._client: EngineClient | None = None
        self._drain: Drain | None = None
        self._process = ProcessCollector(registry=None)
        self._times = Times()
        self.ears = EngineEars()
        self.http = HttpCounts()
        self.lag = LoopLag()

    def attach(self, client: EngineClient, drain: Drain) -> None:
        """What the page reads when it is asked for."""
        self._client, self._drain = client, drain

    def start(self) -> Stopwatch:
        return Stopwatch(self._times)

    async def page(self, accept: str) -> tuple[bytes, str]:
        """The text and its type: OpenMetrics where `accept` asks for it. Written family by family, between which the loop is free for others."""
        encode, kind = _encoder(accept)
        parts = []
        for family in self.families():
            parts.append(encode(_Alone(family)))
            await asyncio.sleep(0)
        if parts[0].endswith(_END):
            parts = [*(part.removesuffix(_END) for part in parts), _END]
        return b"".join(parts), kind

    def families(self) -> Iterator[Metric]:
        for family in self._of_the_model():
            yield family
            if self._options.metric_aliases == "vllm":
                yield from vllm_aliases(family)
        yield from self.http.answers()
        yield from self._process.collect()

    def _of_the_model(self) -> Iterator[Metric]:
        """Each with the name under which the model is served."""
        assert self._client is not None
        name = served_names(self._client.model, self._options)[0]
        for family in self._corekit(self._client):
            family.samples = [sample._replace(labels={"model_name": name, **sample.labels}) for sample in family.samples]
            yield family

    def _corekit(self, client: EngineClient) -> Iterator[Metric]:
        yield from engine_counts(client)
        yield from self._times.collect()
        yield from self.ears.collect()
        yield from self.http.refusals()
        stops = self._drain is not None and self._drain.begun
        yield GaugeMetricFamily("corekit_drain_state", "1: this server stops, and takes no new work.", float(stops))
        yield GaugeMetricFamily("corekit_event_loop_lag_seconds", "How late the event loop was, at worst in the last 15 s.", self.lag.worst())
        built = GaugeMetricFamily("corekit_build_info", "The version, in its label.", labels=["version"])
        built.add_metric([corekit_version()], 1)
        yield built


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    encode: Callable[[Any], bytes]
    try:
        encode, kind = choose_encoder(accept)
    except (TypeError, ValueError):  # of a version that is no number
        encode, kind = choose_encoder("")
    return encode, kind


class _Alone(Collector):
    """One family, as encoders take them."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
