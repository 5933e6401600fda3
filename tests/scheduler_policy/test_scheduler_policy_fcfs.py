"""fcfs against a plan that counts blocks, seats and tokens like the core does, without the core."""

from __future__ import annotations

from types import SimpleNamespace

from corekit.api import PASSED_OVER, Grant, Reason, Refusal
from corekit.builtin.fcfs import Fcfs


class Plan:
    """Requests are names; each needs some blocks to go on. What was asked is kept in order."""

    def __init__(
        self, *, running: str, waiting: str, needs: dict[str, int], holds: dict[str, int], free_blocks: int, refuse: dict[str, Reason] | None = None
    ) -> None:
        def view(name: str) -> SimpleNamespace:
            return SimpleNamespace(name=name)

        self.running, self.waiting = [view(name) for name in running], [view(name) for name in waiting]
        self.resident = list(self.running)
        self.preempted: list[SimpleNamespace] = []
        self.num_returning = 0
        self.scheduled: list[str] = []
        self.free_blocks = free_blocks
        self._needs, self._holds, self._refuse = needs, dict(holds), refuse or {}

    def schedule(self, request: SimpleNamespace, max_tokens: int | None = None) -> Grant:
        if request.name in self._refuse:
            return Grant(reason=self._refuse[request.name])
        if request in self.preempted:
            return Grant(reason=Reason.PREEMPTED)
        need = self._needs.get(request.name, 0)
        if need > self.free_blocks:
            return Grant(reason=Reason.BLOCKS)
        self.free_blocks -= need
        self._holds[request.name] = self._holds.get(request.name, 0) + need
        self.scheduled.append(request.name)
        if request not in self.resident:
            self.resident.append(request)
        return Grant(1)

    def schedule_many(self, requests: list[SimpleNamespace], start: int = 0) -> Refusal | None:
        for index in range(start, len(requests)):
            grant = self.schedule(requests[index])
            if not grant and grant.reason is not None and grant.reason not in PASSED_OVER:
                return Refusal(index, requests[index], grant.reason)
        return None

    def preempt(self, request: SimpleNamespace, mode: str | None = None) -> None:
        self.resident.remove(request)
        self.preempted.append(request)
        self.free_blocks += self._holds.pop(request.name, 0)
        if request.name in self.scheduled:
            self.scheduled.remove(request.name)


def plan(**about) -> Plan:
    step = Plan(**about)
    Fcfs().plan(step)
    return step


def test_running_requests_come_before_waiting_ones() -> None:
    step = plan(running="ab", waiting="cd", needs={"c": 2, "d": 2}, holds={}, free_blocks=4)
    assert step.scheduled == ["a", "b", "c", "d"]


def test_admission_stops_at_the_first_that_does_not_fit() -> None:
    step = plan(running="", waiting="abc", needs={"a": 1, "b": 9, "c": 1}, holds={}, free_blocks=4)
    assert step.scheduled == ["a"]  # c is younger than b and must not overtake it


def test_one_that_is_not_ready_is_passed_over() -> None:
    step = plan(running="", waiting="abc", needs={}, holds={}, free_blocks=4, refuse={"a": Reason.NOT_READY})
    assert step.scheduled == ["b", "c"]


def test_the_youngest_gives_way() -> None:
    step = plan(running="abc", waiting="d", needs={"a": 1, "b": 1}, holds={"a": 3, "b": 3, "c": 2}, free_blocks=0)
    assert [victim.name for victim in step.preempted] == ["c"]
    assert step.scheduled == ["a", "b"]  # and nothing new is admitted in that step


def test_a_request_that_fits_nowhere_gives_way_itself() -> None:
    step = plan(running="ab", waiting="", needs={"a": 1, "b": 5}, holds={"a": 1, "b": 1}, free_blocks=1)
    assert [victim.name for victim in step.preempted] == ["b"]
    assert step.scheduled == ["a"]


def test_an_empty_budget_preempts_nobody() -> None:
    step = plan(running="ab", waiting="c", needs={}, holds={"a": 1, "b": 1}, free_blocks=0, refuse={"b": Reason.BUDGET, "c": Reason.BUDGET})
    assert step.preempted == []
    assert step.scheduled == ["a"]


def test_nobody_is_admitted_before_a_victim_has_come_back() -> None:
    step = Plan(running="a", waiting="b", needs={}, holds={"a": 1}, free_blocks=5)
    step.num_returning = 1
    Fcfs().plan(step)
    assert step.scheduled == ["a"]
