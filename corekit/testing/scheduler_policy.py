"""Kit of slot `scheduler_policy`: everybody finishes, no step is idle while something could run, nobody gives way for nothing.

The policy plans for a simulated engine that is short of blocks, seats and budget and has steps in flight; whole engines show
that answers do not depend on it. Knows the contract only: which order is right is the policy's own.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from random import Random
from types import FunctionType, ModuleType
from typing import Any, ClassVar
from unittest.mock import patch
from weakref import ref

from corekit.api import PASSED_OVER, BuildContext, Provider, SchedulerPolicy

from .kit import Kit
from .policy_answers import alone, answers
from .simulated_engine import Arrival, Scenario, SimulatedEngine, play, random_scenario
from .simulated_step import Sample, Sizes, Step


class SchedulerPolicyKit(Kit):
    """What a policy claims about itself:

    `work_conserving`: it leaves no request without tokens that it could have had for the asking; False for one that saves seats or
    budget on purpose. `max_work`: how often the tokens of a scenario are computed at most because somebody gave way.
    `max_reads`: attributes of requests that one plan reads at most, and requests that it asks for, with 1,000 that run and 10,000
    that wait. The default allows a policy to sort all that wait once a step (some milliseconds); one that keeps an order says less.
    """

    slot = "scheduler_policy"
    work_conserving: ClassVar[bool] = True
    max_work: ClassVar[float] = 6.0
    max_reads: ClassVar[int] = 100_000
    num_scenarios: ClassVar[int] = 24

    def context(self) -> BuildContext:
        return BuildContext(max_num_seqs=4, max_num_batched_tokens=16, max_model_len=64, block_size=4, num_blocks=16, clock=lambda: 0.0)

    def engine(self, sizes: Sizes) -> SimulatedEngine:
        policy: SchedulerPolicy = self.build()
        return SimulatedEngine(policy, sizes)

    def play(self, scenario: Scenario, look: Callable[[Step], None] = lambda step: None) -> SimulatedEngine:
        engine = self.engine(scenario.sizes)
        play(engine, scenario, max_steps=100 + 4 * int(self.max_work) * scenario.num_tokens, look=look)
        return engine

    def scenarios(self, **shape: Any) -> Iterator[Scenario]:
        return (random_scenario(Random(seed), **shape) for seed in range(self.num_scenarios))

    def few(self) -> Iterator[Scenario]:
        """Enough of them to see how a policy goes about it."""
        return islice(self.scenarios(), 10)

    def families(self) -> Iterator[Scenario]:
        """Requests of three samples each: more that answer than the budget has tokens for."""
        for seed in range(self.num_scenarios // 2):
            rng = Random(seed)
            sizes = Sizes(num_blocks=rng.choice((8, 10)), max_num_seqs=6, max_num_batched_tokens=rng.choice((4, 16)), depth=rng.choice((1, 2)))
            arrivals = [Arrival(step=rng.randrange(6), num_prompt_tokens=rng.randint(1, 14), max_tokens=12, num_samples=3) for _ in range(3)]
            yield Scenario(sizes=sizes, arrivals=tuple(arrivals))

    # -- what it brings about --------------------------------------------------------------------------------------

    def test_everybody_finishes(self) -> None:
        """When no more requests come, all end within a bounded number of steps, however short seats, blocks and budget are."""
        for scenario in self.scenarios():
            self.play(scenario)

    def test_no_step_is_idle(self) -> None:
        """With nothing in flight, a plan schedules something as long as anybody runs or waits: the core would plan in its place."""
        for scenario in self.scenarios():
            engine = self.engine(scenario.sizes)

            def look(step: Step, engine: SimulatedEngine = engine) -> None:
                idle = not (step.rows or step.ended or engine.flights)
                assert not (idle and (step.residents or step.waiting)), (
                    f"step {step.number} schedules nothing and nothing is in flight, though {_names(step.residents)} run and {_names(step.waiting)} wait"
                )

            play(engine, scenario, max_steps=10**4, look=look)

    def test_nobody_gives_way_in_vain(self) -> None:
        """Whoever gives way does so for a request that then gets tokens in the same plan, or together with the one that found no block."""
        for scenario in (*self.scenarios(), *self.families()):
            engine = self.engine(scenario.sizes)

            def look(step: Step, engine: SimulatedEngine = engine) -> None:
                vain: list[Sample] = []
                short: set[Sample] = set()
                for move, s in engine.conduct.moves:
                    if move == "out of blocks":
                        short.add(s)
                    vain = [*vain, s] if move == "preempted" else [] if move == "granted" else vain
                moves = ", ".join(f"{s.view} {move}" for move, s in engine.conduct.moves)
                assert short.intersection(vain) or not vain, f"in step {step.number} {_names(vain)} gave way, and nobody got tokens for it: {moves}"

            play(engine, scenario, max_steps=10**4, look=look)

    def test_work_is_not_thrown_away_for_ever(self) -> None:
        """Giving way costs the victim's work: requests must not take each other's place in turns. See `max_work`."""
        for scenario in self.scenarios():
            engine, most = self.engine(scenario.sizes), int(self.max_work * scenario.num_tokens) + 50

            def look(step: Step, engine: SimulatedEngine = engine, scenario: Scenario = scenario, most: int = most) -> None:
                assert engine.num_computed <= most, (
                    f"{engine.num_computed} tokens were computed for {scenario.num_tokens}, at most {most} are expected (max_work): "
                    "requests take each other's place"
                )

            play(engine, scenario, max_steps=10**4, look=look)

    def test_what_could_run_runs(self) -> None:
        """Unless somebody gave way, nobody that runs is left without tokens that it could have had, and all that wait are admitted when
        none of them lacks room. One that is not ready holds up nobody. See `work_conserving`."""
        for scenario in (*self.scenarios(), *self.scenarios(shares=True)) if self.work_conserving else ():
            engine = self.engine(scenario.sizes)

            def look(step: Step, engine: SimulatedEngine = engine) -> None:
                if not step.victims and not engine.returning:
                    asked = step.running if step.refused - PASSED_OVER else (*step.running, *step.waiting)
                    missed = [(s.view, grant.num_tokens) for s in asked if (grant := step.ask(s))]
                    assert not missed, f"step {step.number} leaves {missed[0][0]} without {missed[0][1]} tokens that it could have had"

            play(engine, scenario, max_steps=10**4, look=look)

    def test_parked_ones_come_back(self) -> None:
        """A victim may wait as PARKED (its blocks lie on the host) instead of PREEMPTED: it is admitted again like the others."""
        for scenario in self.scenarios(parks=True):
            self.play(scenario)

    def test_those_that_await_a_prefix_come_back(self) -> None:
        """A request that is not ready because another computes the prefix that it needs leaves `waiting`, which is not its end: it comes
        back once the prefix is there or the other is gone."""
        for scenario in self.scenarios(shares=True):
            self.play(scenario)

    def test_samples_of_one_request_are_told_apart(self) -> None:
        """The samples of one request have one `arrival` and ids of their own; each gives way, comes back and finishes alone."""
        for scenario in self.families():
            self.play(scenario)

    def test_aborts_are_survived_in_every_state(self) -> None:
        """A request may leave while it waits, computes its prompt, answers, or has given way; `on_leave` comes once, whatever came before."""
        for seed, scenario in enumerate(self.scenarios()):
            rng = Random(seed)
            aborts = tuple((rng.randrange(12), number) for number in range(len(scenario.arrivals)))
            self.play(Scenario(sizes=scenario.sizes, arrivals=scenario.arrivals, aborts=aborts))

    def test_answers_do_not_depend_on_it(self) -> None:
        """On a whole engine, with aborted neighbours, every answer is that of the request alone; the engine has nothing to report of the policy.
        So it is with a prefix cache and swap space, too."""
        name = self.candidate().provider.name
        provider: Provider[SchedulerPolicy] = Provider(name=name, api=1, summary="the policy of the kit", build=lambda context, _: self.build(context))
        for keeps in (False, True):
            together, reports = answers(provider, depth=3, keeps=keeps)
            assert not reports, f"the engine reports: {reports[0]}"
            for mine, right in zip(together, alone(), strict=True):
                assert mine == right, f"beside others a request answers {mine}, alone {right}"

    # -- how it goes about it --------------------------------------------------------------------------------------

    def test_same_history_same_plan(self) -> None:
        """A plan follows from what the policy has seen: no chance, no order of addresses or hashes."""
        for scenario in self.scenarios():
            _same(self.play(scenario).log, self.play(scenario).log, "one history was planned in two ways")

    def test_time_is_that_of_the_step(self) -> None:
        """`step.now` is the only clock: where the clocks of the machine stand still, a plan is the same."""
        for scenario in self.few():
            first = self.play(scenario).log
            with ExitStack() as still:
                for name in ("time", "monotonic", "perf_counter"):
                    still.enter_context(patch.object(time, name, lambda: 0.0))
                second = self.play(scenario).log
            _same(first, second, "with the clocks of the module `time` stopped, the plan is another: take the time from step.now")

    def test_views_are_only_read(self) -> None:
        """A policy sets nothing on a view; what it wants to remember of a request it keeps by `request.id`."""
        for scenario in self.few():
            engine = self.engine(scenario.sizes)
            with suppress(AttributeError):
                play(engine, scenario, max_steps=10**4)
            assert not engine.conduct.written, f"the policy sets {engine.conduct.written[0]!r} on a request: a RequestView is read only"

    def test_the_plan_is_used_during_plan_only(self) -> None:
        """A StepPlan that was kept answers nothing later, neither in the accounting nor in the next plan."""
        for scenario in self.few():
            engine = self.engine(scenario.sizes)
            with suppress(RuntimeError):
                play(engine, scenario, max_steps=10**4)
            assert not engine.conduct.late, f"the policy used StepPlan.{engine.conduct.late[0]} after plan() had returned"

    def test_who_left_is_forgotten(self) -> None:
        """After `on_leave` the policy holds no request any more."""
        kept, views = [], {}
        for scenario in self.few():
            engine = self.engine(scenario.sizes)
            seen: dict[int, ref[Any]] = {}

            def look(step: Step, seen: dict[int, ref[Any]] = seen) -> None:
                seen.update((s.id, ref(s.view)) for s in (*step.running, *step.waiting))

            play(engine, scenario, max_steps=10**4, look=look)
            kept.append(engine.policy)
            views[len(kept)] = seen
        del engine
        gc.collect()
        held = [request for seen in views.values() for request in (left() for left in seen.values()) if request is not None]
        assert not held, f"all requests have left, and the policy still holds {held[:3]}"

    def test_its_memory_does_not_grow(self) -> None:
        """What it keeps, ids and counts too, does not grow with the requests it has served. A thousand may be remembered."""
        engine = self.engine(Sizes())

        def served(count: int) -> int:
            start = len(engine.log)
            arrivals = tuple(Arrival(step=start + number // 4, num_prompt_tokens=1, max_tokens=1) for number in range(count))
            play(engine, Scenario(sizes=engine.sizes, arrivals=arrivals), max_steps=start + 100 + 10 * count)
            return _num_held(engine.policy)

        before = served(1000)
        grown = served(400) - before
        assert grown < 100, f"400 more requests came and left, and the policy holds {grown} objects more: forget a request in on_leave"

    def test_a_plan_looks_at_few(self) -> None:
        """A plan looks at each request a few times at most, however many wait and however many it admits. See `max_reads`."""
        sizes = Sizes(num_blocks=8000, block_size=16, max_num_seqs=1000, max_num_batched_tokens=40_000)
        engine, rng = self.engine(sizes), Random(0)
        for number in range(11_000):
            engine.arrive(Arrival(num_prompt_tokens=rng.randint(20, 40), max_tokens=60, ends_at=2 + number % 50, priority=rng.randrange(3)))
        for number in range(6):
            step = engine.plan()
            reads, asked = engine.conduct.num_reads, engine.conduct.num_asked
            engine.settle(step)
            if number:  # the first admits a thousand
                cost = f"with {len(step.running)} running and {len(step.waiting)} waiting"
                assert reads <= self.max_reads, f"{cost} a plan reads {reads} attributes of requests, at most {self.max_reads} are expected (max_reads)"
                assert asked <= self.max_reads, f"{cost} a plan asks for {asked} requests, at most {self.max_reads} are expected (max_reads)"


def _names(samples: Sequence[Sample]) -> str:
    return ", ".join(str(s.view) for s in samples[:5]) or "nobody"


def _same(first: Sequence[Any], second: Sequence[Any], otherwise: str) -> None:
    at = next((at for at, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), None)
    assert at is None, f"{otherwise}; step {at}: {first[at]}, and then {second[at]}"


def _num_held(part: object) -> int:
    """Objects that can be reached from it, leaving out code."""
    seen: set[int] = set()
    found = [part]
    while found:
        one = found.pop()
        if id(one) not in seen and not isinstance(one, type | ModuleType):
            seen.add(id(one))
            found += one.__closure__ or () if isinstance(one, FunctionType) else gc.get_referents(one)
    return len(seen)
