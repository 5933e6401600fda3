"""One engine on the fingerprint model, driven step by step, and the law it is held to.

The law: whatever happens around it, a request's tokens are those of its solo run, and everything comes back at the end.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field

import pytest
from corekit_cpu_swap.layer import CpuSwap
from corekit_lru_prefix.layer import LruPrefix
from corekit_lru_prefix.options import LruPrefixOptions
from fingerprint_solo import VOCAB, ThirdBanned, fingerprint, solo_answer, solo_prompt_logprobs
from unreliable_layer import Unreliable

from corekit.api import KvPlan, RequestState, SamplingParams
from corekit.builtin.delayed import Delayed
from corekit.builtin.fcfs import Fcfs
from corekit.builtin.free_list import FreeList
from corekit.builtin.in_process import InProcess
from corekit.builtin.priority import Priority
from corekit.builtin.torch_attention import TorchAttention
from corekit.builtin.torch_sampler import TorchSampler
from corekit.engine.blocks import CopyJournal
from corekit.engine.constraints import Constraint
from corekit.engine.engine import Engine
from corekit.engine.limits import Limits
from corekit.engine.request import NewRequest
from corekit.engine.scheduler import Scheduler
from corekit.testing.prefix_cache import PlainPrefixCache
from corekit.worker.worker import RankWorker

FAULTY_TOKEN = VOCAB + 1
"""No answer holds it. A row that computes it makes the forward pass raise: a fault that is its request's alone."""


class FaultyModel:
    """The model, raising where a row holds FAULTY_TOKEN."""

    def __init__(self, model) -> None:
        self._model = model

    def __getattr__(self, name):
        return getattr(self._model, name)

    def forward(self, inputs, attend):
        if (inputs.token_ids == FAULTY_TOKEN).any():
            raise ValueError("this row cannot be computed")
        return self._model.forward(inputs, attend)


class Chaos:
    """A bad policy: random order, amounts and victims, sometimes an exception. Slow, but it must not corrupt or leak."""

    def __init__(self, rng: random.Random, patience: int) -> None:
        self.rng = rng
        self.patience = patience
        self.kept = None

    def plan(self, step) -> None:
        rng = self.rng
        self.patience -= 1
        if self.kept is not None and rng.random() < 0.1:
            try:
                self.kept.schedule(self.kept_request)
            except RuntimeError:
                pass
            else:
                assert self.kept is step, "an old plan answered"
        if self.patience < 0:
            return Fcfs().plan(step)
        for _ in range(rng.randrange(8)):
            everyone = [*step.running, *step.waiting]
            one = rng.choice(everyone)
            dice = rng.random()
            if dice < 0.3 and step.resident:
                step.preempt(rng.choice(step.resident), rng.choice(("recompute", "swap", None)))
            elif dice < 0.5:
                step.schedule_many(everyone, rng.randrange(len(everyone)))
            else:
                step.schedule(one, rng.choice((None, None, 0, 1, 3)))
            step.cached_tokens(one)
        self.kept, self.kept_request = step, rng.choice([*step.running, *step.waiting])
        if rng.random() < 0.05:
            raise RuntimeError("a policy may raise")
        return None


@dataclass(frozen=True)
class Setting:
    block_size: int = 4
    num_blocks: int = 12
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 40
    long_prefill_token_threshold: int = 0
    watermark_blocks: int = 0
    depth: int = 1  # 1: in-process; more: delayed
    stack: str = "free-list"  # free-list | plain | lru | swap | lru+swap
    num_host_blocks: int = 64
    preemption: str | None = None
    max_draft_tokens: int = 0
    policy: str = "fcfs"  # fcfs | priority | chaos
    unreliable: bool = False
    seed: int = 0


@dataclass
class Asked:
    request: NewRequest
    tokens: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    prompt_logprobs: list | None = None
    aborted: bool = False
    faulty: bool = False


class World:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.rng = random.Random(setting.seed)
        model = fingerprint(setting.max_draft_tokens)
        self.worker = RankWorker(
            model=FaultyModel(model), attention=TorchAttention(model.spec.layers, device="cpu", poison=True), sampler=TorchSampler(), device="cpu", threads=0
        )
        plan = {"num_blocks": setting.num_blocks, "num_host_blocks": setting.num_host_blocks, "block_size": setting.block_size}
        self.worker.allocate_kv(KvPlan(**plan, kv_dtype="float64", layers=model.spec.layers))
        self.time = itertools.count().__next__
        journal = CopyJournal()
        limits = Limits(
            num_blocks=setting.num_blocks,
            block_size=setting.block_size,
            max_num_seqs=setting.max_num_seqs,
            max_num_batched_tokens=setting.max_num_batched_tokens,
            max_model_len=4096,
            long_prefill_token_threshold=setting.long_prefill_token_threshold,
            watermark_blocks=setting.watermark_blocks,
            max_draft_tokens=setting.max_draft_tokens,
            vocab_size=VOCAB,
            preemption=setting.preemption,
            bytes_per_block=1,
        )
        policy = {"fcfs": Fcfs, "priority": Priority, "chaos": lambda: Chaos(self.rng, 100)}[setting.policy]()
        stack = self.build_stack(journal)
        self.scheduler = Scheduler(stack=stack, journal=journal, policy=policy, fallback=Fcfs(), limits=limits, clock=self.clock)
        self.scheduler.rates.swap_is_quicker = lambda num_bytes, num_tokens: self.rng.random() < 0.5  # what was measured differs from run to run
        executor = InProcess(self.worker) if setting.depth == 1 else Delayed(self.worker, setting.depth)
        self.engine = Engine(self.scheduler, executor, clock=self.clock)
        self.asked: dict[str, Asked] = {}
        self.num_steps = 0
        self.num_awaited = 0

    def clock(self) -> float:
        return float(self.time())

    def build_stack(self, journal: CopyJournal):
        setting, stack = self.setting, FreeList(self.setting.num_blocks)
        if setting.stack == "plain":
            stack = PlainPrefixCache(stack)
        if setting.stack.startswith("lru"):
            stack = LruPrefix(stack, LruPrefixOptions(sample_every=2), clock=self.clock)
        if setting.stack.endswith("swap"):
            stack = CpuSwap(stack, journal, num_slots=setting.num_host_blocks, max_cached=setting.num_host_blocks // 2)
        return Unreliable(stack, lambda: self.rng.random() < 0.1) if setting.unreliable else stack

    # -- what may happen

    def ask(
        self,
        prompt,
        *,
        max_tokens=8,
        n=1,
        temperature=0.0,
        seed=0,
        end_ids=(),
        faulty=False,
        min_tokens=0,
        bad_words=(),
        constrained=False,
        priority=0,
        **shape,
    ) -> str | None:
        """The id of the new request; None when the engine says that it can never fit. shape: what else SamplingParams has."""
        prompt = tuple(prompt) + ((FAULTY_TOKEN,) if faulty else ())
        if self.engine.refusal(len(prompt), n):
            return None
        name = f"r{len(self.asked)}"
        end_ids = tuple(end_ids)
        params = SamplingParams(n=n, temperature=temperature, max_tokens=max_tokens, min_tokens=min(min_tokens, max_tokens), stop_token_ids=end_ids, **shape)
        new = NewRequest(
            request_id=name,
            token_ids=prompt,
            params=params,
            max_tokens=max_tokens,
            seed=seed,
            end_ids=end_ids,
            bad_words=bad_words,
            priority=priority,
            constraints=tuple(Constraint([ThirdBanned()]) for _ in range(n)) if constrained else (),
        )
        self.asked[name] = Asked(new, faulty=faulty)
        self.engine.submit(new)
        return name

    def abort(self, name: str, sample: int | None = None) -> None:
        self.asked[name].aborted = True
        self.engine.abort(name, sample=sample)

    def step(self) -> None:
        for delta in self.engine.step():
            asked = self.asked[delta.request_id]
            assert delta.sample not in asked.reasons, f"news of {delta} after its end"
            asked.tokens.setdefault(delta.sample, []).extend(delta.token_ids)
            if delta.prompt_logprobs is not None:
                assert asked.prompt_logprobs is None, f"logprobs of the prompt of {delta.request_id} came twice"
                asked.prompt_logprobs = list(delta.prompt_logprobs)
            if delta.finish_reason is not None:
                asked.reasons[delta.sample] = delta.finish_reason
        plan = self.scheduler.step
        assert plan.token_budget >= 0, "the token budget was exceeded"
        assert 0 <= plan.seats <= self.setting.max_num_seqs, "seats were exceeded"
        assert sum(r.num_samples for r in plan.resident) + plan.seats == self.setting.max_num_seqs, "seats and residents differ"
        assert sum(row.num_tokens for row in plan.rows.values()) + plan.token_budget == self.setting.max_num_batched_tokens, "budget was lost"
        for group in self.scheduler.groups.values():
            for r in group.samples:
                if r.state is not RequestState.FINISHED:
                    self._check_counts(r)
        self.num_awaited += len(plan.awaiting)
        self.num_steps += 1

    def _check_counts(self, r) -> None:
        assert 0 <= r.num_committed <= r.num_computed_tokens <= r.num_known, f"counts of {r!r} are out of order"
        if r.state is RequestState.RUNNING:
            assert self.scheduler.blocks.span(r.num_computed_tokens) <= len(r.table), f"the table of {r!r} does not cover what is computed"
        else:
            assert not (r.table or r.sent), f"{r!r} holds something"
            assert (r.ticket is not None) == (r.state is RequestState.PARKED), f"{r!r} has ticket {r.ticket}"
            assert r.ticket is not None or not r.num_computed_tokens, f"{r!r} has computed something, and it is gone"

    def finish(self) -> None:
        """Run until nobody is left, then hold the law."""
        last = self.num_steps + 1500
        while not self.engine.idle:
            self.step()
            assert self.num_steps < last, "no end in sight"
        self.check()

    # -- the law

    def check(self) -> None:
        for name, asked in self.asked.items():
            self._check_request(name, asked)
        assert self.engine.audit() == []
        if self.setting.policy != "chaos" and not self.setting.unreliable:
            assert not [told for told in self.scheduler.planner.reported if "policy" in told], self.scheduler.planner.reported

    def _check_request(self, name: str, asked: Asked) -> None:
        new, capacity = asked.request, self.setting.num_blocks * self.setting.block_size
        if asked.faulty:
            assert set(asked.reasons.values()) <= {"error", "abort"} and asked.reasons, f"{name} had a fault and ended {asked.reasons}"
            return
        assert "error" not in asked.reasons.values(), f"{name} ended with an error it did not earn"
        self._check_prompt_logprobs(name, asked)
        if not asked.aborted:
            assert sorted(asked.reasons) == list(range(new.params.n)), f"{name} has samples {sorted(asked.reasons)} of {new.params.n}"
        for sample, reason in asked.reasons.items():
            tokens, right = tuple(asked.tokens.get(sample, ())), solo_answer(new, sample)
            assert tokens == right[: len(tokens)], f"{name} sample {sample}: {tokens} is not {right}"
            if reason == "stop":
                assert tokens == right and tokens[-1] in new.end_ids, f"{name} sample {sample} stopped at {tokens}"
            elif reason == "length" and len(tokens) != len(right):
                assert len(new.token_ids) + len(tokens) == capacity + 1, f"{name} sample {sample} ended after {len(tokens)} of {len(right)}"
            elif reason == "length":
                assert tokens[-1] not in new.end_ids or len(tokens) == new.max_tokens
            else:
                assert reason == "abort" and asked.aborted, f"{name} ended with {reason}"

    def _check_prompt_logprobs(self, name: str, asked: Asked) -> None:
        """They come with the first token, of every position but the first, whatever was computed twice or in chunks."""
        if asked.request.params.prompt_logprobs is None:
            assert asked.prompt_logprobs is None
        elif any(asked.tokens.values()):
            right = solo_prompt_logprobs(asked.request)
            assert asked.prompt_logprobs is not None and len(asked.prompt_logprobs) == len(right), f"{name}: {asked.prompt_logprobs}"
            for found, wanted in zip(asked.prompt_logprobs[1:], right[1:], strict=True):
                assert found is not None, f"{name}: a position is missing"
                assert (found.token_id, [id for id, _ in found.top]) == (wanted.token_id, [id for id, _ in wanted.top]), f"{name}: {found} is not {wanted}"
                assert [found.logprob, *(x for _, x in found.top)] == pytest.approx([wanted.logprob, *(x for _, x in wanted.top)], abs=1e-5)
