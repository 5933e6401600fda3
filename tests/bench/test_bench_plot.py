"""Plots: the curves as numbers, images that show something, and what is said where none can be drawn."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from bench_rig import FINGERPRINT, QUIET, invoked

from corekit.bench.curves import MAX_POINTS, NUM_INTERVALS, arrived_and_completed, distribution, tokens_per_second
from corekit.bench.plot import drawn
from corekit.bench.result import Result
from corekit.bench.trace import Trace


def trace(sent: float, *arrivals: float, out: int = 0, due: float | None = None) -> Trace:
    return Trace(num_prompt_tokens=10, num_cached_tokens=0, num_output_tokens=out or len(arrivals), sent=sent, arrivals=arrivals, due=due)


def test_a_distribution_is_the_share_up_to_each_value() -> None:
    assert distribution([3.0, 1.0, 2.0, 2.0]) == ([1.0, 2.0, 2.0, 3.0], [0.25, 0.5, 0.75, 1.0])
    assert distribution([5.0]) == ([5.0], [1.0])
    xs, ys = distribution(range(99_999))
    assert MAX_POINTS / 2 < len(xs) <= MAX_POINTS + 1
    assert (xs[0], xs[-1], ys[-1]) == (0, 99_998, 1.0)
    assert all(y == (x + 1) / 99_999 for x, y in zip(xs, ys, strict=True))


def test_tokens_per_second_sum_up_to_the_tokens() -> None:
    traces = [trace(100.0, 102.0, 104.0, out=6), trace(101.0, 110.0, out=1)]
    xs, ys = tokens_per_second(traces)
    width = 10.0 / NUM_INTERVALS
    assert len(xs) == len(ys) == NUM_INTERVALS
    assert sum(ys) * width == pytest.approx(7)
    assert ys[int(2.0 / width)] == pytest.approx(3 / width)
    assert ys[-1] == pytest.approx(1 / width)
    assert xs[0] == pytest.approx(width / 2)
    xs, ys = tokens_per_second([trace(0.0, 0.05, out=4)])
    assert (xs, ys) == ([0.025], [4 / 0.05])


def test_arrivals_count_from_when_they_were_due() -> None:
    come, done = arrived_and_completed([trace(5.0, 9.0, due=4.0), trace(6.0, 7.0, due=4.5)])
    assert come == ([0.0, 0.0, 0.5, 5.0], [0, 1, 2, 2])
    assert done == ([0.0, 3.0, 5.0], [0, 1, 2])


def colours(image: bytes) -> set[tuple[int, ...]]:
    from PIL import Image

    with Image.open(io.BytesIO(image)) as found:
        assert found.format == "PNG"
        assert found.size[0] > 800
        return {colour for _, colour in found.convert("RGB").getcolors(1 << 24)}


def result(**changes: object) -> Result:
    values = {"bench": "serve", "subject": {"workload": "w" * 300, "rate": 2.0}, "target": {}, "spreads": {}, "percentiles": {}, "attempts": [], "remarks": []}
    return Result(**{**values, **changes})  # type: ignore[arg-type]


def test_an_image_has_every_repetition() -> None:
    one, other = [trace(0.0, 1.0, 2.0), trace(0.5, 3.0, 3.001)], [trace(10.0, 11.0, 12.5)]
    first, second = (31, 119, 180), (255, 127, 14)  # C0 and C1 of matplotlib
    assert {first, second} <= colours(drawn(result(remarks=["NOISY: very"]), [one, other]))
    without_gaps = colours(drawn(result(), [[trace(0.0, 1.0)]]))
    assert first in without_gaps
    assert second not in without_gaps


def test_the_command_line_draws(tmp_path: Path) -> None:
    out = tmp_path / "plot.png"
    work = tmp_path / "work.json"
    work.write_text(json.dumps({"mine": {"reps": [[{"ids": [rep, 2, 3], "out": 4}] * 2 for rep in range(3)]}}))
    invoked("latency", *FINGERPRINT, "--workload", work, "--reps", 2, "--plot", out, *QUIET)
    assert len(colours(out.read_bytes())) > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plot.png", "work.json"]


def test_what_cannot_be_drawn_is_said_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = ["throughput", "none", "--set", "model.use=nonesuch"]  # an engine that cannot be had: its error would come later
    assert "a plot is a PNG image" in invoked(*never, "--plot", tmp_path / "plot.svg", code=2).stderr
    assert "no such folder" in invoked(*never, "--plot", tmp_path / "none" / "plot.png", code=1).stderr
    assert "no such folder" in invoked(*never, "--trace", tmp_path / "none" / "trace.json", code=1).stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    assert "needs matplotlib, which cannot be imported here" in (said := invoked(*never, "--plot", tmp_path / "plot.png", code=2).stderr)
    assert 'pip install "corekit[plot]"' in said
