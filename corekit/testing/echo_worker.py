"""A worker that answers with what it was told: an executor's laws are read off the results, wherever its ranks run.

Every result says, as "faults" of its rows, which step arrived, with which masks, as which in turn, and what was allocated before.
Knows nothing of models or devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from corekit.api import Admission, BlockRef, Copy, KvPlan, LayerSpec, RowInput, RowMasks, SamplingParams, StepInput, StepResult, TokenLogprob

NUM_ROWS = 4
FREE_MEMORY = 1_000_003
MAX_DRAFT_TOKENS = 5
FAILED = "the device has failed"
PLAN = KvPlan(
    num_blocks=7, num_host_blocks=3, block_size=4, kv_dtype="float32", layers=(LayerSpec(num_heads=2, num_kv_heads=1, key_dim=4, value_dim=6, scale=0.5),)
)


def bytes_per_block(kv_dtype: str) -> int:
    return 64 + len(kv_dtype)


def step(number: int) -> StepInput:
    """A step whose every field differs from those of other steps, with values at the bounds of their types."""
    params = SamplingParams(
        temperature=0.25,
        logit_bias={5: -1.5},
        allowed_token_ids=(1, 5),
        banned_token_ids=(2,),
        bad_words=("bad",),
        seed=-(2**63) + number,
        stop=("end", "ä"),
        logprobs=2,
        max_tokens=None,
    )
    admission = Admission((1, 2, 2**31 - 1, number), 3, params, 2**63 - 1, 1, (256, 257), ((7,), (8, 9)))
    rows = tuple(RowInput(10 * number + at, at, 1 + at, at % 3, 0, at, (number, at), admission if at % 2 else None) for at in range(NUM_ROWS))
    return StepInput(number=number, rows=rows, copies=(Copy(BlockRef(number), BlockRef(2, True)),), gone=(number, 9))


def answer(given: StepInput, masks: RowMasks | None, ordinal: int, plans: Sequence[KvPlan]) -> StepResult:
    """What the worker says to its step number `ordinal`, counted from 0. plans: all pools that were allocated before."""
    told = (f"step {given!r}", f"masks {spelled(masks)}", f"step {ordinal} in turn", f"pools {list(plans)!r}")
    return StepResult(
        tokens=tuple(tuple((given.number, row.id, sample) for sample in range(row.num_samples)) for row in given.rows),
        logprobs={1: ((TokenLogprob(given.number, -0.5, ((5, -0.5), (6, -1.25))),),)},
        prompt_logprobs={3: (given.number, (TokenLogprob(7, -2.5), TokenLogprob(8, -0.125, ((8, -0.125),))))},
        faults=dict(enumerate(told)),
        seconds=0.125 + given.number,
    )


def spelled(masks: RowMasks | None) -> str:
    return "none" if masks is None else repr(dict(sorted(masks.words.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoFactory:
    """(rank, size) -> an echo worker. Picklable. `fails_in`: the verb that raises at the step of number `fails_at`."""

    fails_in: str = ""
    fails_at: int = -1

    def __call__(self, rank: int, size: int) -> EchoWorker:
        assert 0 <= rank < size, f"the worker's factory was called with rank {rank} of {size}; ranks are 0 to size - 1"
        return EchoWorker(self)


@dataclass(slots=True)
class _Step:
    given: StepInput
    masks: RowMasks | None = None
    sampled: bool = False


class EchoWorker:
    """Holds the executor to the order of the verbs: each step submitted, sampled and collected once; nothing submitted before the last was sampled."""

    def __init__(self, factory: EchoFactory) -> None:
        self._factory = factory
        self._steps: deque[_Step] = deque()
        self._plans: list[KvPlan] = []
        self._num_collected = 0

    @property
    def max_draft_tokens(self) -> int:
        return MAX_DRAFT_TOKENS

    def free_memory(self) -> int:
        return FREE_MEMORY

    def bytes_per_block(self, kv_dtype: str) -> int:
        return bytes_per_block(kv_dtype)

    def allocate_kv(self, plan: KvPlan) -> None:
        self._plans.append(plan)

    def submit(self, step: StepInput) -> None:
        assert not self._steps or self._steps[-1].sampled, f"the worker got step {step.number} before the one before it was sampled"
        self._fail_in("submit", step)
        self._steps.append(_Step(step))

    def sample(self, masks: RowMasks | None) -> None:
        assert any(not waiting.sampled for waiting in self._steps), "the worker was asked to sample, and no submitted step waits for it"
        self._fail_in("sample", self._steps[-1].given)
        self._steps[-1].masks = None if masks is None else RowMasks(words=dict(masks.words))
        self._steps[-1].sampled = True

    def collect(self) -> StepResult:
        assert any(waiting.sampled for waiting in self._steps), "the worker was asked for a result, and no step was submitted and sampled"
        oldest = self._steps.popleft()
        self._fail_in("collect", oldest.given)
        self._num_collected += 1
        return answer(oldest.given, oldest.masks, self._num_collected - 1, self._plans)

    def _fail_in(self, verb: str, step: StepInput) -> None:
        if (self._factory.fails_in, self._factory.fails_at) == (verb, step.number):
            raise RuntimeError(f"{FAILED} in {verb}")
