"""Draws what a benchmark of requests found, as a PNG. The one that knows matplotlib, which is imported here and only when something is drawn."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .curves import arrived_and_completed, distribution, tokens_per_second
from .errors import BenchUsage
from .result import Result
from .statistics import percentile
from .trace import Trace
from .whole_file import check_writable

_MARKED = (50.0, 90.0, 99.0)
_WIDE = 30.0
"""Ratio of the 99th to the first percentile from which an axis of times is logarithmic."""


def check_plot(path: Path) -> None:
    """Raises before anything is measured where the plot could not be drawn or written."""
    if path.suffix.lower() != ".png":
        raise BenchUsage(f"--plot {path}: a plot is a PNG image. Give a name that ends in .png.")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise BenchUsage(f'--plot {path}: drawing needs matplotlib, which cannot be imported here ({error}). Install it: pip install "corekit[plot]"') from None
    check_writable(path, "--plot")


def drawn(result: Result, repetitions: Sequence[Sequence[Trace]]) -> bytes:
    """repetitions: those that were kept, each with its answered requests."""
    from matplotlib.figure import Figure  # not pyplot: that keeps figures and chooses a screen for the whole process

    figure = Figure(figsize=(12, 8), layout="constrained")
    (first, gaps), (tokens, requests) = figure.subplots(2, 2)
    traces = [trace for repetition in repetitions for trace in repetition]
    _distribution(first, "time to first token", [trace.ttft for trace in traces])
    _distribution(gaps, "time between deliveries (ITL)", [gap for trace in traces for gap in trace.itl])
    for number, repetition in enumerate(repetitions, 1):
        colour = f"C{(number - 1) % 10}"
        tokens.plot(*tokens_per_second(repetition), color=colour, linewidth=1.2, label=f"repetition {number}")
        come, done = arrived_and_completed(repetition)
        requests.step(*come, where="post", color=colour, linewidth=1.0, linestyle="--")
        requests.step(*done, where="post", color=colour, linewidth=1.2)
    _over_time(tokens, "throughput", "output tokens / s")
    if len(repetitions) > 1:
        tokens.legend(fontsize="small")
    _over_time(requests, "requests: arrived (dashed), completed (solid)", "requests")
    figure.suptitle("\n".join(textwrap.fill(title, 150) for title in _titles(result)), fontsize="medium")
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()


def _distribution(axes: Any, title: str, seconds: Sequence[float]) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("ms")
    axes.set_ylabel("share of samples")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)
    if not seconds:
        axes.text(0.5, 0.5, "one delivery for each request: no gaps", ha="center", transform=axes.transAxes)
        return
    ordered = sorted(1e3 * value for value in seconds)
    if ordered[0] > 0 and percentile(ordered, 99) > _WIDE * percentile(ordered, 1):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    axes.step(*distribution(ordered), where="post", linewidth=1.4)
    for percent, style in zip(_MARKED, (":", "-.", "--"), strict=True):
        value = percentile(ordered, percent)
        axes.axvline(value, color="0.4", linestyle=style, linewidth=1.0, label=f"p{percent:.0f} {value:,.4g} ms")
    axes.legend(fontsize="small", loc="lower right", title=f"{len(ordered):,} samples", title_fontsize="small")


def _over_time(axes: Any, title: str, what: str) -> None:
    axes.set_title(title, fontsize="medium")
    axes.set_xlabel("seconds since the first arrival")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)


def _titles(result: Result) -> Iterable[str]:
    yield f"corekit bench {result.bench}: " + ", ".join(f"{name.replace('_', ' ')} {_short(value)}" for name, value in result.subject.items())
    yield f"{result.machine['cpu']}, {result.machine['cores']} cores; {result.time}"
    yield from (remark for remark in result.remarks if remark.startswith("NOISY") or "FAILED" in remark)


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else "..." + text[-57:]
