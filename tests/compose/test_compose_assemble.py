"""Assembly: whole engines from tables and from objects, side by side, and every refusal before anything is loaded."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from compose_installs import Install, plugin

from corekit.api import API_VERSION, BuildContext, EngineClient, Prompt, Provider, RequestStats, SamplingParams, StepPlan, StepStats
from corekit.builtin.bytes_tokenizer import BytesTokenizer
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.fingerprint import Fingerprint
from corekit.builtin.free_list import FreeList
from corekit.builtin.options import FingerprintOptions
from corekit.builtin.torch_sampler import TorchSampler
from corekit.compose.assemble import assemble, bind
from corekit.compose.assembly import Assembly
from corekit.compose.composition import compose
from corekit.compose.errors import BindError, ConfigError
from corekit.compose.ranks import RankFactory

TABLES: dict[str, Any] = {
    "model": {"source": "none", "use": "fingerprint", "max_model_len": 256},
    "scheduler": {"max_num_seqs": 4, "max_num_batched_tokens": 16, "watermark": 0},
    "block_allocator": {"num_blocks": 32, "block_size": 8},
    "frontend": [],
}


def tables(**more: Any) -> dict[str, Any]:
    return {name: {**TABLES.get(name, {}), **value} if isinstance(value, dict) else value for name, value in {**TABLES, **more}.items()}


async def ask(assembly: Assembly, text: str, params: SamplingParams) -> tuple[int, ...]:
    got: list[int] = []
    async for output in assembly.client.generate(Prompt(text=text), params):
        got += output.outputs[0].token_ids
    return tuple(got)


def answers(assembly: Assembly) -> list[tuple[int, ...]]:
    """Greedy and seeded answers, several at once."""

    async def all_of_them() -> list[tuple[int, ...]]:
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
        seeded = replace(params, temperature=1.0, seed=5)
        return list(await asyncio.gather(*(ask(assembly, f"prompt {i}", p) for i in range(6) for p in (params, seeded))))

    return asyncio.run(all_of_them())


@pytest.fixture(scope="module")
def expected() -> list[tuple[int, ...]]:
    with assemble(TABLES, environ={}) as assembly:
        found = answers(assembly)
        assert assembly.engine.audit() == []
    assert len(set(found)) == len(found)
    return found


def test_assembly_from_objects_equals_assembly_from_toml(expected: list[tuple[int, ...]]) -> None:
    parts = {
        "tokenizer": BytesTokenizer(),
        "scheduler_policy": Fcfs(),
        "block_allocator": FreeList(32),
        "model": Fingerprint(FingerprintOptions()),
        "sampler": TorchSampler(),
    }
    config = tables(model={"use": "no such model", "source": "none"})
    with assemble(config, environ={}, **parts) as assembly:
        assert answers(assembly) == expected
        by_slot = {part.slot: part for part in assembly.parts}
        assert (by_slot["tokenizer"].name, by_slot["tokenizer"].distribution) == ("BytesTokenizer", "(python)")
        assert by_slot["attention_backend"].distribution == "corekit"


def test_a_model_object_needs_no_source(expected: list[tuple[int, ...]]) -> None:
    config = {key: value for key, value in TABLES.items() if key != "model"}
    with assemble({**config, "max_model_len": 256}, environ={}, model=Fingerprint(FingerprintOptions())) as assembly:
        assert answers(assembly) == expected


def test_steps_in_flight_change_no_answer(expected: list[tuple[int, ...]]) -> None:
    with assemble(tables(executor={"use": "delayed", "options": {"depth": 3}}), environ={}) as assembly:
        assert assembly.executor.max_in_flight == 3
        assert answers(assembly) == expected


LAST_FIRST = """
from corekit.api import API_VERSION, Provider, hookimpl

class LastFirst:
    def plan(self, step):
        self.planned = getattr(self, "planned", 0) + 1
        step.schedule_many(step.running)
        if not step.preempted:
            step.schedule_many(list(reversed(step.waiting)))

@hookimpl
def corekit_register_scheduler_policies():
    return [Provider(name="last-first", api=API_VERSION, summary="a part", build=lambda context, options: LastFirst())]
"""


def test_two_engines_with_different_plugins_in_one_process(install: Install, expected: list[tuple[int, ...]]) -> None:
    install("corekit-last-first", LAST_FIRST, version="0.7")
    named = tables(scheduler_policy={"use": "last-first"}, block_allocator={"num_blocks": 64}, model={"options": {"seed": 3}})
    with assemble(named, environ={}) as one, assemble(TABLES, environ={}) as other:
        mine, theirs = answers(one), answers(other)
        policy = one.engine.scheduler.planner.policy
        assert type(policy).__name__ == "LastFirst"
        assert policy.planned > 0  # type: ignore[attr-defined]
        assert isinstance(other.engine.scheduler.planner.policy, Fcfs)
        (part,) = (part for part in one.parts if part.slot == "scheduler_policy")
        assert (part.distribution, part.version) == ("corekit-last-first", "0.7")
    assert theirs == expected
    assert mine != expected


def test_the_context_that_is_promised_is_what_the_pool_holds() -> None:
    for num_blocks, promised in ((31, 248), (32, 256), (40, 256)):
        with assemble(tables(block_allocator={"num_blocks": num_blocks}), environ={}) as assembly:
            model = assembly.client.model
            assert (model.max_model_len, assembly.pool.largest_context) == (promised, promised)
            assert model.aliases == ()
            assert len(asyncio.run(ask(assembly, "x", SamplingParams(max_tokens=None, ignore_eos=True)))) == promised - 1


def test_ids_that_end_an_answer_are_those_of_the_tokenizer_and_of_the_model() -> None:
    """The script goes on with its own end, which the tokenizer does not know, and never comes to the tokenizer's."""
    mine = tables(model={"use": "scripted", "options": {"scripts": [[5, 6]], "eos_token_id": 7}})
    both = tables(model={"use": "scripted", "options": {"scripts": [[5, 256, 6]], "eos_token_id": 7}})
    params = SamplingParams(max_tokens=9, temperature=0)
    for config, ends in ((mine, (5, 6, 7)), (both, (5, 256))):
        with assemble(config, environ={}) as assembly:
            assert asyncio.run(ask(assembly, "x", params)) == ends
            assert len(asyncio.run(ask(assembly, "x", replace(params, ignore_eos=True)))) == 9


def test_facts_and_the_summary() -> None:
    with assemble(TABLES, environ={}) as assembly:
        model = assembly.client.model
        assert (model.name, model.max_model_len, model.supports_logprobs) == ("fingerprint", 256, True)
        assert assembly.summary()[1].startswith("KV cache: 32 blocks of 8 tokens = 256 tokens")
        assert {part.slot for part in assembly.parts} >= {
            "tokenizer",
            "scheduler_policy",
            "block_allocator",
            "attention_backend",
            "sampler",
            "model",
            "executor",
        }
        assert any("attention_backend  torch" in line and "auto: highest rank" in line for line in assembly.summary())


def problems(config: dict[str, Any], **parts: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        compose(config, given=parts, environ={}, clock=lambda: 0.0)
    return list(caught.value.problems)


def test_every_name_and_option_is_checked_at_once_before_the_source_is_opened() -> None:
    found = problems(
        tables(
            model={"source": "no/such/place", "options": {"seed": -1}},
            sampler={"use": "troch"},
            executor={"options": {"depth": 2}},
            block_allocator={"stack": ["free-list"], "options": {"free-lst": {"a": 1}}},
            observer=[{"use": "nobody"}],
        )
    )
    assert found == ["Python argument: [block_allocator.options] free-lst: there is no such layer in the stack ['free-list']. Did you mean 'free-list'?"]
    found = problems(
        tables(
            model={"source": "no/such/place", "options": {"seed": -1}},
            sampler={"use": "troch"},
            executor={"options": {"depth": 2}},
            observer=[{"use": "nobody"}],
        )
    )
    assert [problem.split(":")[1].strip() for problem in found] == [
        "[sampler] use = 'troch'",
        "[model] options",
        "[executor.options] depth",
        "[[observer]] number 1, use = 'nobody'",
    ]


@pytest.mark.parametrize(("stack", "said"), [(["free-list", "free-list"], "twice"), ([], "at least one layer"), (["lru"], "no such provider")])
def test_stacks_that_cannot_be(stack: list[str], said: str) -> None:
    assert said in problems(tables(block_allocator={"stack": stack}))[0]


def test_a_bottom_on_top_of_another_is_a_composition_error(install: Install) -> None:
    bottom = plugin("block_allocators", "other").replace("object()", "FreeList(context.num_blocks)")
    install("corekit-other", "from corekit.builtin.free_list import FreeList\n" + bottom)
    with pytest.raises(ConfigError, match=r"\['other', 'free-list'\]: other from corekit-other 1.0 takes no block from the layer beneath it"):
        assemble(tables(block_allocator={"stack": ["other", "free-list"]}), environ={})
    with pytest.raises(ConfigError, match=r"\['free-list', 'other'\]: free-list from corekit .*the bottom of a stack"):
        assemble(tables(block_allocator={"stack": ["free-list", "other"]}), environ={})


def test_numbers_that_the_model_cannot_have() -> None:
    assert "max_model_len = 5000: the context of fingerprint is 4096 tokens" in problems(tables(model={"max_model_len": 5000}))[0]
    both = problems(tables(model={"dtype": "float32"}, block_allocator={"kv_dtype": "bfloat16"}))
    assert [problem.partition(": ")[2].split(":")[0] for problem in both] == ["[model] dtype = 'float32'", "[block_allocator] kv_dtype = 'bfloat16'"]


def test_a_share_of_a_gpu_on_a_cpu_is_refused_when_somebody_asked_for_it() -> None:
    (problem,) = problems(tables(engine={"device": "cpu"}, block_allocator={"memory_utilization": 0.9}))
    assert "[block_allocator] memory_utilization = 0.9: it is a part of a GPU's memory, and the device is 'cpu'" in problem


def test_steps_in_flight_are_the_executors_number() -> None:
    with pytest.raises(ConfigError, match=r"max_in_flight = 2: the executor 'in-process' keeps 1 in flight"):
        assemble(tables(engine={"max_in_flight": 2}), environ={})


def test_a_pool_of_an_object_must_be_the_pool() -> None:
    with pytest.raises(ConfigError, match="the stack offers 31 blocks, the pool has 32"):
        assemble(TABLES, environ={}, block_allocator=FreeList(31))


def refuse(*reasons: str) -> Any:
    return lambda context: reasons


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    monkeypatch.setattr(Fingerprint, "load", lambda self, weights, shard: counted.append(1))
    return counted


def test_refusals_come_together_and_before_weights(loads: list[int]) -> None:
    def part(name: str, reason: str) -> Provider[Any]:
        return Provider(name=name, api=API_VERSION, summary="", build=lambda context, options: None, refuse=refuse(reason))

    with pytest.raises(ConfigError) as caught:
        assemble(TABLES, environ={}, attention_backend=part("mine", "no sinks"), sampler=part("draw", "no GPU"))
    assert caught.value.problems == (
        "the argument attention_backend: mine from (python) cannot run here: no sinks",
        "the argument sampler: draw from (python) cannot run here: no GPU",
    )
    assert not loads


def test_weights_are_loaded_once_by_the_model_that_gave_the_spec(loads: list[int]) -> None:
    built: list[Fingerprint] = []

    def build(context: BuildContext, options: None) -> Fingerprint:
        built.append(Fingerprint(FingerprintOptions()))
        return built[-1]

    with assemble(TABLES, environ={}, model=Provider(name="counted", api=API_VERSION, summary="", build=build)):
        assert len(built) == 1
        assert loads == [1]


def test_an_exception_in_build_keeps_its_traceback_and_gains_a_note(install: Install) -> None:
    broken = plugin("scheduler_policies", "broken").replace("lambda context, options: object()", "build")
    install("corekit-broken", "def build(context, options):\n    return {}['deep']\n" + broken, version="4.2")
    with pytest.raises(KeyError) as caught:
        assemble(tables(scheduler_policy={"use": "broken"}), environ={})
    assert caught.traceback[-1].name == "build"
    (note,) = caught.value.__notes__
    assert "scheduler_policy broken from corekit-broken 4.2" in note
    assert "[scheduler_policy] use" in note


def test_a_component_of_the_wrong_shape_is_named(install: Install) -> None:
    install("corekit-odd", plugin("scheduler_policies", "odd"), version="4.2")
    with pytest.raises(ConfigError, match=r"\[scheduler_policy\] use: odd from corekit-odd 4.2 built a object .* no method plan\(step: 'StepPlan'\)"):
        assemble(tables(scheduler_policy={"use": "odd"}), environ={})


def test_what_is_merely_installed_changes_nothing(install: Install, expected: list[tuple[int, ...]]) -> None:
    """Parts that carry the names of the defaults, and a layer of the default stack: nobody named them."""
    hooks = {"scheduler_policies": "fcfs", "samplers": "torch", "block_allocators": "free-list", "executors": "in-process"}
    install("corekit-copycat", "\n".join(plugin(hook, name) for hook, name in hooks.items()))
    install("corekit-layer", plugin("block_allocators", "lru-prefix"))
    with assemble(TABLES, environ={}) as assembly:
        assert {part.distribution for part in assembly.parts} == {"corekit"}
        assert answers(assembly) == expected
    assert "Say which: corekit-copycat:torch, corekit:torch" in problems(tables(sampler={"use": "torch"}))[0]
    with assemble(tables(sampler={"use": "corekit:torch"}), environ={}) as assembly:
        assert answers(assembly) == expected


def test_a_failed_plugin_is_quoted_when_its_name_is_asked_for(install: Install) -> None:
    install("corekit-fair", "raise RuntimeError('needs Python 4')", version="1.1")
    (problem,) = problems(tables(scheduler_policy={"use": "fair"}))
    assert "its plugin failed to register: corekit-fair 1.1" in problem
    assert "corekit-fair 1.1" in problem
    assert "needs Python 4" in problem


def test_given_providers_get_their_default_options() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Mine:
        seed: int = 0

    seen: list[object] = []

    def build(context: BuildContext, options: Mine) -> Fcfs:
        seen.append(options)
        return Fcfs()

    with assemble(TABLES, environ={}, scheduler_policy=Provider(name="mine", api=API_VERSION, summary="", build=build, options=Mine)):
        assert seen == [Mine()]


class Raising:
    def plan(self, step: StepPlan) -> None:
        raise RuntimeError("boom")


def test_the_fallback_plans_when_the_policy_fails(expected: list[tuple[int, ...]]) -> None:
    with assemble(TABLES, environ={}, scheduler_policy=Raising()) as assembly:
        assert answers(assembly) == expected


class Counting:
    def __init__(self) -> None:
        self.steps: list[StepStats] = []
        self.requests: list[RequestStats] = []

    def on_step(self, stats: StepStats) -> None:
        self.steps.append(stats)

    def on_request(self, stats: RequestStats) -> None:
        self.requests.append(stats)


def test_observers_hear() -> None:
    observer = Counting()
    with assemble(TABLES, environ={}, observers=[observer]) as assembly:
        answers(assembly)
    assert len(observer.requests) == 12
    assert observer.steps


def test_the_environment_counts_for_tables_and_not_for_a_checked_configuration() -> None:
    environ = {"COREKIT__BLOCK_ALLOCATOR__BLOCK_SIZE": "4"}
    without = {**TABLES, "block_allocator": {"num_blocks": 64}}
    with assemble(without, environ=environ) as assembly:
        assert assembly.pool.block_size == 4


def test_the_rank_factory_can_go_to_another_process() -> None:
    composition = compose(TABLES, environ={}, clock=__import__("time").monotonic)
    factory = RankFactory(
        context=composition.context,
        model=composition.one("model"),
        attention_backend=composition.one("attention_backend"),
        sampler=composition.one("sampler"),
        ready=(composition.model, composition.sampler),
    )
    again = pickle.loads(pickle.dumps(factory))
    assert again.ready is None
    assert again(0, 1).bytes_per_block("float64") > 0


class Waiting:
    """A frontend that serves until it is cancelled."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.state: list[str] = []

    async def serve(self, client: EngineClient) -> None:
        self.state.append(client.health().state)
        if self.fault is not None:
            raise self.fault
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.state.append("ended")


@asynccontextmanager
async def serving(assembly: Assembly) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(assembly.serve())
    await asyncio.sleep(0.01)
    yield task
    task.cancel()
    await asyncio.wait({task})


def serve_and_cancel(frontends: Sequence[object]) -> asyncio.Task[None]:
    async def go() -> asyncio.Task[None]:
        async with serving(assembly) as task:
            pass
        return task

    with assemble(TABLES, environ={}, frontends=frontends) as assembly:
        return asyncio.run(go())


def test_cancelling_serve_ends_every_frontend() -> None:
    frontends = [Waiting(), Waiting()]
    serve_and_cancel(frontends)
    assert [frontend.state for frontend in frontends] == [["ready", "ended"]] * 2


def test_a_frontend_that_fails_ends_the_others() -> None:
    frontends = [Waiting(), Waiting(OSError("no socket"))]
    task = serve_and_cancel(frontends)
    assert str(task.exception()) == "no socket"
    assert frontends[0].state == ["ready", "ended"]


def test_nothing_to_serve_is_said() -> None:
    with assemble(TABLES, environ={}) as assembly, pytest.raises(ConfigError, match="nothing to serve"):
        asyncio.run(assembly.serve())


class Busy(Waiting):
    address = None

    def bind(self) -> None:
        raise OSError(98, "port 1 is in use")


def test_a_busy_address_is_known_before_weights(loads: list[int]) -> None:
    composition = compose(TABLES, given={"frontend": [Busy()]}, environ={}, clock=lambda: 0.0)
    with pytest.raises(BindError, match="port 1 is in use"):
        bind(composition.frontends)
    assert not loads


def test_the_columns_of_the_table_fit_long_names() -> None:
    composition = compose(TABLES, environ={}, clock=lambda: 0.0)
    slot, (part, *_) = next(iter(composition.chosen.items()))
    plugin = replace(part.candidate.plugin, distribution="corekit-with-a-name-that-is-longer-than-others")
    candidate = replace(part.candidate, plugin=plugin)
    head, *lines = replace(composition, chosen={**composition.chosen, slot: (replace(part, candidate=candidate),)}).table()
    assert [line[head.index("WHY") :] for line in lines] == [part.why for part in composition.parts]


def test_close_twice_and_the_executor_ends_when_assembly_fails() -> None:
    ended: list[int] = []

    def build(context: BuildContext, options: None) -> Any:
        from corekit.builtin.in_process import InProcess

        assert context.worker is not None
        executor = InProcess(context.worker(0, 1))
        executor.shutdown = lambda: ended.append(1)  # type: ignore[method-assign]
        return executor

    executor: Provider[Any] = Provider(name="counted", api=API_VERSION, summary="", build=build)
    assembly = assemble(TABLES, environ={}, executor=executor)
    assembly.close()
    assembly.close()
    assert ended == [1, 1]
    with pytest.raises(ConfigError):
        assemble(TABLES, environ={}, executor=executor, block_allocator=FreeList(31))
    assert ended == [1, 1, 1]
