"""The page /metrics: what the engine counts, what was heard of it, and what this frontend sees. Labels come from fixed sets only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
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

_PLAIN = "text/plain; version=0.0.4; charset=utf-8"
_OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_END = b"# EOF\n"
"""How OpenMetrics ends."""
_open_metrics = partial(openmetrics.generate_latest, escaping=openmetrics.ALLOWUTF8)
"""The names are plain ones, of which any other way of escaping takes the colons."""


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
        is_open = _OPEN.split(";", maxsplit=1)[0] in accept
        encode: Callable[[Collector], bytes] = _open_metrics if is_open else generate_latest
        parts = []
        for family in self.families():
            parts.append(encode(_Alone(family)).removesuffix(_END))
            await asyncio.sleep(0)
        return b"".join([*parts, _END if is_open else b""]), _OPEN if is_open else _PLAIN

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


class _Alone(Collector):
    """One family, as encoders take them."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family
