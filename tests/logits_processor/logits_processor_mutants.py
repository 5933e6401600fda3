"""A right logits processor, and broken ones: one fault each, and the law that must see it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from corekit.api import NewSample, Provider, RowProcessor

EOS = 256


class Row:
    """Invariant: `ids` is the prompt and what was accepted."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.ids = list(prompt)

    def accept(self, token_ids: Sequence[int]) -> None:
        self.ids += token_ids

    def rollback(self, count: int) -> None:
        del self.ids[len(self.ids) - count :]

    def banned(self) -> set[int]:
        """What followed the last id before, but never the end."""
        return {after for before, after in zip(self.ids, self.ids[1:], strict=False) if before == self.ids[-1]} - {EOS}

    def fill(self, mask_row: memoryview) -> None:
        for id in self.banned():
            mask_row[id // 32] &= ~(1 << id % 32)


class Right:
    """No two ids follow each other twice."""

    row: type[Row] = Row

    def start(self, sample: NewSample) -> RowProcessor | None:
        return self.row(sample.token_ids)


class RowWithoutRollback:
    def __init__(self, prompt: Sequence[int]) -> None:
        self._row = Row(prompt)
        self.accept, self.fill = self._row.accept, self._row.fill


class CannotGoBack(Right):
    row = RowWithoutRollback  # type: ignore[assignment]


class Sleeping(Row):
    def banned(self) -> set[int]:
        return set()


class ForbidsNothing(Right):
    row = Sleeping


class Backwards(Row):
    def fill(self, mask_row: memoryview) -> None:
        for id in self.banned():
            mask_row[id // 32] &= ~(1 << 31 - id % 32)


class CountsBitsFromTheTop(Right):
    row = Backwards


class Strict(Row):
    def fill(self, mask_row: memoryview) -> None:
        for word in range(len(mask_row)):
            if len(set(self.ids)) < len(self.ids):
                mask_row[word] = 0


class LeavesNothing(Right):
    row = Strict


class Assigning(Row):
    def fill(self, mask_row: memoryview) -> None:
        words = [0xFFFFFFFF] * len(mask_row)
        for id in self.banned():
            words[id // 32] &= ~(1 << id % 32)
        for at, word in enumerate(words):
            mask_row[at] = word


class AssignsWords(Right):
    row = Assigning


class Fixed(Row):
    def fill(self, mask_row: memoryview) -> None:
        super().fill(mask_row[: EOS // 32 + 1] if len(mask_row) == EOS // 32 + 1 else memoryview(bytearray(64)).cast("I"))


class CountsOnAWidth(Right):
    row = Fixed


class Counting(Row):
    num_fills = 0

    def banned(self) -> set[int]:
        self.num_fills += 1
        return super().banned() if self.num_fills % 2 else set()


class CountsFills(Right):
    row = Counting


class Keeping(Row):
    def fill(self, mask_row: memoryview) -> None:
        self.last = mask_row.cast("B")
        super().fill(mask_row)


class KeepsTheMask(Right):
    row = Keeping


class LastOnly(Row):
    def accept(self, token_ids: Sequence[int]) -> None:
        self.ids += token_ids[-1:]


class AcceptsTheLastOnly(Right):
    row = LastOnly


class Remembering(Row):
    """Keeps followers by id, for speed, and does not forget them."""

    def __init__(self, prompt: Sequence[int]) -> None:
        super().__init__([])
        self.followers: dict[int, set[int]] = {}
        self.accept(prompt)

    def accept(self, token_ids: Sequence[int]) -> None:
        for id in token_ids:
            if self.ids:
                self.followers.setdefault(self.ids[-1], set()).add(id)
            self.ids.append(id)

    def banned(self) -> set[int]:
        return self.followers.get(self.ids[-1], set()) - {EOS}


class ForgetsToForget(Right):
    row = Remembering


class Numbered(Row):
    number = 0

    def banned(self) -> set[int]:
        return {*super().banned(), self.number % EOS}


class DependsOnItsNumber(Right):
    count = 0

    def start(self, sample: NewSample) -> RowProcessor | None:
        row = Numbered(sample.token_ids)
        self.count += 1
        row.number = self.count
        return row


class OneSetForAll(Right):
    """Followers are kept in one table, cleared at each start."""

    def start(self, sample: NewSample) -> RowProcessor | None:
        self.table: dict[int, set[int]] = {}
        processor = self

        class Sharing(Row):
            def accept(self, token_ids: Sequence[int]) -> None:
                for id in token_ids:
                    processor.table.setdefault(self.ids[-1], set()).add(id)
                    self.ids.append(id)

            def banned(self) -> set[int]:
                return processor.table.get(self.ids[-1], set()) - {EOS}

        return Sharing(sample.token_ids)


class OneScratchForAll(Right):
    def start(self, sample: NewSample) -> RowProcessor | None:
        self.prompt = sample.token_ids
        time.sleep(0)
        return Row(self.prompt)


MUTANTS: Mapping[type[Right], str] = {
    CannotGoBack: "test_a_row_has_what_the_contract_says",
    ForbidsNothing: "test_something_is_forbidden",
    CountsBitsFromTheTop: "test_what_should_be_forbidden_is",
    LeavesNothing: "test_something_is_left",
    AssignsWords: "test_a_mask_is_only_cleared",
    CountsOnAWidth: "test_a_wider_mask_is_filled_alike",
    CountsFills: "test_asking_for_a_mask_changes_nothing",
    KeepsTheMask: "test_the_mask_is_given_back",
    AcceptsTheLastOnly: "test_ids_may_be_accepted_one_by_one_or_together",
    ForgetsToForget: "test_rollback_undoes_accept",
    DependsOnItsNumber: "test_equal_samples_get_equal_masks",
    OneSetForAll: "test_rows_are_independent",
    OneScratchForAll: "test_starts_may_overlap",
}


def provider_of(part: type[Right]) -> Provider[Any]:
    return Provider(name="no-pair-twice", api=1, summary="no two ids follow each other twice, for a test", build=lambda context, options: part())
