"""Files that a benchmark of requests leaves beside its result: a plot, a Chrome trace. Knows where they go; draws nothing itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .asked_trace import asked_trace
from .measure import Attempt
from .plot import check_plot, drawn
from .result import Result
from .serving import Repetition
from .timeline import Stretch, Timeline
from .whole_file import check_writable, write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """None: not asked for."""

    plot: Path | None = None
    trace: Path | None = None

    def check(self) -> None:
        """Raises before anything is measured where one of them could not be written."""
        if self.plot is not None:
            check_plot(self.plot)
        if self.trace is not None:
            check_writable(self.trace, "--trace")

    def timeline(self) -> Timeline | None:
        """To be told by the engine that is measured, where it is in this process."""
        return Timeline() if self.trace is not None else None

    def write(self, result: Result, attempts: Sequence[Attempt[Repetition]], timeline: Timeline | None = None) -> None:
        """The plot has the kept repetitions, the trace all that were measured."""
        if self.plot is not None:
            write_whole(self.plot, drawn(result, [attempt.value.traces for attempt in attempts if attempt.kept]), "--plot")
        if self.trace is not None:
            stretches = [Stretch(one.label, one.began, one.ended) for one in (attempt.value for attempt in attempts)]
            traces = [trace for attempt in attempts for trace in attempt.value.traces]
            write_whole(self.trace, timeline.encoded(stretches) if timeline is not None else asked_trace(traces, stretches), "--trace")


NO_OUTPUTS = Outputs()
