"""Kit of slot `logits_processor`: masks that only forbid, that depend on the accepted ids alone, and that leave something to draw.

Bits of ids beyond the vocabulary are nobody's: a processor may clear them or leave them, and no law looks at them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from random import Random
from typing import ClassVar

import pytest

from corekit.api import BuildContext, LogitsProcessor, NewSample, RowProcessor, SamplingParams
from corekit.compose.contract import differences

from .fake_client import bytes_tokenizer
from .kit import Kit

_WORD = 32
_ALL = 0xFFFFFFFF


class LogitsProcessorKit(Kit):
    """An author overrides `samples` where a constraint has to be asked for, `walk` where answers must not be random, and `forbidden`.

    `vocab_size`: ids that the model has; the masks of the kit are a little wider. `end_ids`: those that end an answer.
    `num_steps`: the most ids of an answer.
    """

    slot = "logits_processor"
    vocab_size: ClassVar[int] = 257
    end_ids: ClassVar[tuple[int, ...]] = (256,)
    num_steps: ClassVar[int] = 24

    def context(self) -> BuildContext:
        return BuildContext(tokenizer=bytes_tokenizer(), max_model_len=1024)

    def samples(self) -> Sequence[NewSample]:
        """Samples of which at least one is constrained. By default prompts that repeat themselves, of one request and of several."""
        draw, params = Random(21), SamplingParams(n=2)
        prompts = [tuple(draw.choices(b"abc", k=length)) for length in (1, 5, 40)]
        return [NewSample(request_id=f"kit-{at}", sample=sample, token_ids=ids, params=params) for at, ids in enumerate(prompts) for sample in (0, 1)]

    def forbidden(self, sample: NewSample, accepted: Sequence[int]) -> Collection[int] | None:
        """What may not come next after these ids of an answer, by another road than the part's own; None: the kit is not told."""
        return None

    def walk(self, allowed: Sequence[int], draw: Random) -> int:
        """The next id of an answer, of those that may come (never none): few ids, so that they repeat, with others between."""
        favourites = [id for id in b"abc" if id in allowed]
        return draw.choice(favourites if favourites and draw.random() < 0.9 else allowed)

    # -- laws ------------------------------------------------------------------------------------------------------

    def test_a_row_has_what_the_contract_says(self) -> None:
        """`start` gives None or a part with `accept`, `rollback` and `fill`, whose signatures fit; some sample of the kit is constrained."""
        rows = self._rows(self.build())
        problems = [problem for row, _ in rows for problem in differences(row, RowProcessor)]
        assert not problems, f"start gives a {type(rows[0][0]).__name__}: {problems[0]}"

    def test_something_is_forbidden(self) -> None:
        """In some answer of the kit some id may not come: a processor that forbids nothing needs no row."""
        forbidding = any(len(allowed) < self.vocab_size for row, sample in self._rows(self.build()) for _, allowed in self._answer(row, sample))
        assert forbidding, "no mask of the kit's answers clears a bit. Override `samples` or `walk`, so that the constraint has something to forbid"

    def test_what_should_be_forbidden_is(self) -> None:
        """Every mask forbids what `forbidden` says, bit by bit: bit i % 32 of word i // 32 is id i."""
        for row, sample in self._rows(self.build()):
            ids: list[int] = []
            for id, allowed in self._answer(row, sample):
                if (expected := self.forbidden(sample, tuple(ids))) is None:
                    pytest.skip("this law needs `forbidden`: override it to say what a mask must forbid")
                got = set(range(self.vocab_size)).difference(allowed)
                wrong = f"it forbids {sorted(got)[:9]}, expected {sorted(expected)[:9]}"
                assert got == set(expected), f"after the ids {ids} of {sample.request_id} {wrong}"
                ids.append(id)

    def test_something_is_left(self) -> None:
        """In every mask of an answer that keeps to the masks some id may come: the sampler must have something to draw."""
        for row, sample in self._rows(self.build()):
            ids: list[int] = []
            for id, allowed in self._answer(row, sample):
                assert allowed, f"after the ids {ids} of {sample.request_id} no id may come. Leave at least the ids that end an answer"
                ids.append(id)

    def test_a_mask_is_only_cleared(self) -> None:
        """Bits that another processor has cleared stay cleared, and what this one clears does not depend on them."""
        draw = Random(22)
        for row, sample in self._rows(self.build()):
            for _, allowed in self._answer(row, sample):
                others = {id for id in range(self.vocab_size) if draw.random() < 0.5}
                both = self._fill(row, others)
                assert both <= others, f"fill sets the bit of {min(both - others)}, which another processor has cleared: clear bits with &=, never assign words"
                assert both == others & set(allowed), "fill clears other bits when some are cleared already: do not read what is in the mask"

    def test_a_wider_mask_is_filled_alike(self) -> None:
        """The table of a model may be padded: more words in the mask change nothing for the ids of the vocabulary."""
        for row, sample in self._rows(self.build()):
            for _, allowed in self._answer(row, sample):
                wider = self._fill(row, num_words=2 * self._num_words())
                assert wider == set(allowed), "fill clears other bits in a wider mask: take the width from the mask that is given"

    def test_asking_for_a_mask_changes_nothing(self) -> None:
        """Between two accepted ids every `fill` gives the same: a preempted row is asked again."""
        for row, sample in self._rows(self.build()):
            for _, allowed in self._answer(row, sample):
                again = [self._fill(row) for _ in range(3)]
                assert all(mask == set(allowed) for mask in again), "a second fill gives another mask than the first: only accept and rollback may change a row"

    def test_the_mask_is_given_back(self) -> None:
        """Once `fill` has returned, the row keeps no view of the mask: its memory is used for the next step."""
        for row, sample in self._rows(self.build()):
            for _ in self._answer(row, sample):
                buffer = bytearray(b"\xff" * (4 * self._num_words()))
                view = memoryview(buffer).cast("I")
                row.fill(view)
                try:
                    view.release()
                    buffer.extend(b"x")  # refused while anything looks at it
                except BufferError as error:
                    raise AssertionError("after fill the row still holds a view of the mask: let go of arrays and casts made of it") from error

    def test_ids_may_be_accepted_one_by_one_or_together(self) -> None:
        """Several ids accepted in one call are the same as accepted in several; none accepted changes nothing."""
        processor, draw = self.build(), Random(23)
        for row, sample in self._rows(processor):
            steps = list(self._answer(row, sample))
            other, at = self._start(processor, sample), 0
            while at < len(steps):
                assert self._fill(other) == set(steps[at][1]), f"after {at} ids, accepted several at a time, the mask differs from that after one by one"
                count = draw.randrange(4)
                other.accept([id for id, _ in steps[at : at + count]])
                at += count

    def test_rollback_undoes_accept(self) -> None:
        """After `rollback(count)` every mask is as if the last `count` ids had never been accepted, to the very first one."""
        draw = Random(24)
        for row, sample in self._rows(self.build()):
            steps = list(self._answer(row, sample))
            at = len(steps)
            for _ in range(12):
                back = draw.randrange(at + 1)
                row.rollback(back)
                at -= back
                forward = draw.randrange(len(steps) - at) if at < len(steps) else 0
                if at < len(steps):
                    message = f"after a rollback of {back} ids to {at} the mask differs from the one that was there before"
                    assert self._fill(row) == set(steps[at][1]), message
                row.accept([id for id, _ in steps[at : at + forward]])
                at += forward

    def test_equal_samples_get_equal_masks(self) -> None:
        """Masks are a function of sample and accepted ids: the same in another row, another processor, another engine."""
        first, second = self.build(), self.build()
        for row, sample in self._rows(first):
            steps = list(self._answer(row, sample))
            for other in (self._start(first, sample), self._start(second, sample)):
                got = list(self._follow(other, steps))
                assert got == [set(allowed) for _, allowed in steps], "the same ids give other masks in another row"

    def test_rows_are_independent(self) -> None:
        """Rows that are used in turn, as in a batch, give what each gives alone."""
        processor: LogitsProcessor = self.build()
        alone = [list(self._answer(row, sample)) for row, sample in self._rows(processor)]
        rows = self._rows(processor)
        together = zip_longest(*(self._follow(row, steps) for (row, _), steps in zip(rows, alone, strict=True)))
        for at, masks in enumerate(together):
            for steps, mask, (_, sample) in zip(alone, masks, rows, strict=True):
                assert mask is None or mask == set(steps[at][1]), f"{sample.request_id}, sample {sample.sample}: its mask depends on what other rows accept"

    def test_starts_may_overlap(self) -> None:
        """Samples that are started in several threads at once get what each gets alone."""
        processor: LogitsProcessor = self.build()
        samples = [replace(sample, request_id=f"{sample.request_id}-{turn}") for turn in range(20) for sample in self.samples()]
        alone = [None if (row := processor.start(sample)) is None else self._fill(row) for sample in samples]
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        try:
            with ThreadPoolExecutor(4) as pool:
                rows = list(pool.map(processor.start, samples))
        finally:
            sys.setswitchinterval(before)
        together = [None if row is None else self._fill(row) for row in rows]
        wrong = [sample.request_id for sample, one, other in zip(samples, alone, together, strict=True) if one != other]
        assert not wrong, f"{wrong[0]}, started while others start, gets another mask: keep what belongs to a sample out of the processor"

    # -- how rows are driven ---------------------------------------------------------------------------------------

    def _start(self, processor: LogitsProcessor, sample: NewSample) -> RowProcessor:
        row = processor.start(sample)
        assert row is not None, f"{sample.request_id}, sample {sample.sample}, was constrained when it was started first, and is not now"
        return row

    def _rows(self, processor: LogitsProcessor) -> list[tuple[RowProcessor, NewSample]]:
        rows = [(row, sample) for sample in self.samples() if (row := processor.start(sample)) is not None]
        assert rows, "start gives None for every sample of the kit. Override `samples` with some that ask for the constraint"
        return rows

    def _answer(self, row: RowProcessor, sample: NewSample) -> Iterator[tuple[int, list[int]]]:
        """An answer that keeps to the masks: each id, given before it is accepted, and the ids that might have come."""
        draw = Random(f"{sample.request_id} {sample.sample}")
        for _ in range(self.num_steps):
            allowed = sorted(self._fill(row))
            id = self.walk(allowed, draw) if allowed else 0
            yield id, allowed
            row.accept((id,))
            if id in self.end_ids:
                return

    def _follow(self, row: RowProcessor, steps: Sequence[tuple[int, list[int]]]) -> Iterator[set[int]]:
        """The masks along the ids of an earlier answer."""
        for id, _ in steps:
            yield self._fill(row)
            row.accept((id,))

    def _num_words(self) -> int:
        return self.vocab_size // _WORD + 1

    def _fill(self, row: RowProcessor, allowed: set[int] | None = None, *, num_words: int = 0) -> set[int]:
        """Ids of the vocabulary that are left of `allowed` (all of them, by default)."""
        view = memoryview(bytearray(4 * (num_words or self._num_words()))).cast("I")
        for at in range(len(view)):
            view[at] = _ALL
        for id in () if allowed is None else set(range(self.vocab_size)) - allowed:
            view[id // _WORD] &= ~(1 << id % _WORD) & _ALL
        row.fill(view)
        return {id for id in range(self.vocab_size) if view[id // _WORD] >> id % _WORD & 1}
