"""Where the time of a step goes, heard through an observer: the public news of the engine, nothing inside it."""

from __future__ import annotations

from collections.abc import Sequence

from corekit.api import RequestStats, StepStats

PHASES = ("plan", "submit", "collect", "commit")


class StepLog:
    """An observer that keeps the news of steps until they are taken. Told on the engine's thread, read on another: it only appends."""

    def __init__(self) -> None:
        self._steps: list[StepStats] = []

    def on_step(self, stats: StepStats) -> None:
        self._steps.append(stats)

    def on_request(self, stats: RequestStats) -> None:
        pass

    def take(self) -> list[StepStats]:
        """The steps since the last call."""
        count = len(self._steps)
        taken, self._steps[:count] = self._steps[:count], []
        return taken


def step_samples(steps: Sequence[StepStats]) -> dict[str, list[float]]:
    """Seconds of each phase, and of all four, step by step."""
    phases = {phase: [float(getattr(step, f"{phase}_seconds")) for step in steps] for phase in PHASES}
    return {**phases, "in_all": [sum(four) for four in zip(*phases.values(), strict=True)]}
