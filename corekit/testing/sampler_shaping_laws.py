"""Laws of what changes a sample's logits before the draw: biases, penalties, what is allowed and banned. Knows no implementation."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from corekit.api import SamplingBatch

from .draws import GREEDY, Draw, DrawKit, batch_of

NUM_CASES = 150
VOCAB_SIZE = 12


class ShapingLaws(DrawKit):
    """Greedy draws show a formula exactly: the highest of the changed logits wins."""

    def _histories(self, rng: Random, most: int = 4) -> tuple[tuple[int, int], ...]:
        return tuple((id, rng.choice((0, 0, 1, 2, most))) for id in rng.sample(range(VOCAB_SIZE), rng.randint(1, 9)))

    def test_biases_are_added(self) -> None:
        """A bias is added to the logit of its id, for its sample."""
        rng = Random(1)
        draws = [replace(GREEDY, biases=tuple((id, rng.uniform(-4, 4)) for id in rng.sample(range(VOCAB_SIZE), 4))) for _ in range(NUM_CASES)]
        self.check_greedy(self.random(NUM_CASES, VOCAB_SIZE, 1), draws, "logit + bias")

    def test_repetition_divides_what_is_positive_and_multiplies_the_rest(self) -> None:
        """For every id of the history, of prompt and output alike."""
        rng = Random(2)
        draws = [replace(GREEDY, repetition=rng.choice((0.4, 0.8, 1.3, 3.0)), history=self._histories(rng)) for _ in range(NUM_CASES)]
        for shift in (-2.0, 0.0, 2.0):
            self.check_greedy(self.random(NUM_CASES, VOCAB_SIZE, 2) + shift, draws, "x / repetition if x > 0, else x * repetition")

    def test_presence_is_taken_once(self) -> None:
        """From each id that stands in the output, however often; not from one that stands in the prompt alone."""
        rng = Random(3)
        draws = [replace(GREEDY, presence=rng.choice((-2.0, -0.7, 0.9, 2.0)), history=self._histories(rng, 90)) for _ in range(NUM_CASES)]
        self.check_greedy(self.random(NUM_CASES, VOCAB_SIZE, 3), draws, "logit - presence if the id stands in the output")

    def test_frequency_is_taken_as_often_as_the_id_was_drawn(self) -> None:
        """From the logit of each id of the output."""
        rng = Random(4)
        draws = [replace(GREEDY, frequency=rng.choice((-1.1, -0.4, 0.6, 2.0)), history=self._histories(rng)) for _ in range(NUM_CASES)]
        self.check_greedy(self.random(NUM_CASES, VOCAB_SIZE, 4), draws, "logit - frequency * num_output")

    def test_biases_come_before_penalties(self) -> None:
        """Repetition looks at the sign of the biased logit; presence and frequency come after repetition."""
        rng = Random(5)
        draws = [
            replace(
                GREEDY,
                repetition=4.0,
                presence=1.0,
                frequency=0.5,
                history=self._histories(rng),
                biases=tuple((id, rng.choice((-3.0, 3.0))) for id in range(8)),
            )
            for _ in range(NUM_CASES)
        ]
        self.check_greedy(self.random(NUM_CASES, VOCAB_SIZE, 5, width=1.0), draws, "biases, then penalties")

    def test_changed_draws_follow_their_distribution(self) -> None:
        """Biases and penalties come before the temperature and the filters, and the draws follow what comes out."""
        logits = self.random(1, VOCAB_SIZE, 6, width=1.0)[0].tolist()
        history = ((0, 1), (1, 0), (2, 3), (5, 2), (7, 0))
        asked = Draw(repetition=1.6, presence=0.8, frequency=0.3, history=history, biases=((3, 1.2), (0, -0.7)))
        for draw in (
            asked,
            replace(asked, temperature=0.6),
            replace(asked, temperature=1.4, top_k=7, banned=(4,)),
            Draw(allowed=(1, 4, 6, 9), temperature=0.7),
        ):
            self.check_distribution(logits, draw)

    def test_banned_ids_are_never_drawn(self) -> None:
        """However likely they are, greedy or not; the others keep their proportions."""
        logits = [0.0, 50.0, 0.5, 1.0, 60.0, 0.2]
        banned = (4, 1)
        for draw in (Draw(banned=banned), Draw(banned=banned, temperature=2.0, biases=((1, 100.0),)), replace(GREEDY, banned=banned)):
            self.check_distribution(logits, draw, 800)

    def test_only_allowed_ids_are_drawn(self) -> None:
        """However unlikely they are; banned ones are taken out of them."""
        logits = [0.0, 50.0, -9.0, -8.0, 60.0, -8.5]
        for draw in (Draw(allowed=(5, 2, 3)), replace(GREEDY, allowed=(2, 3)), Draw(allowed=(3, 2, 5, 1), banned=(1, 0)), Draw(allowed=(2,), banned=(4,))):
            self.check_distribution(logits, draw, 800)

    def test_what_may_be_drawn_is_settled_before_the_filters(self) -> None:
        """top_k, top_p and min_p look at what is allowed and not banned: they never leave a sample nothing."""
        logits = [5.0, 4.0, 1.0, 0.5, 0.0, -1.0]
        for asked in (Draw(banned=(0, 1)), Draw(allowed=(2, 3, 4, 5)), Draw(biases=((0, -20.0), (1, -20.0)))):
            for draw in (replace(asked, top_k=2), replace(asked, top_p=0.6), replace(asked, min_p=0.5)):
                self.check_distribution(logits, draw, 800)

    def _asking(self) -> SamplingBatch:
        """Four samples that ask for everything, each for something else."""
        rng, ids = Random(9), range(VOCAB_SIZE)
        draws = [
            Draw(
                temperature=at / 2,
                biases=tuple((id, rng.uniform(-2, 2)) for id in rng.sample(ids, 4)),
                banned=tuple(rng.sample(ids, 2)),
                allowed=tuple(rng.sample(ids, 9)),
                repetition=1.5,
                presence=0.5,
                frequency=0.2,
                history=self._histories(rng),
                top_k=6,
                min_p=0.05,
                top_p=0.9,
            )
            for at in range(4)
        ]
        return batch_of(draws, None, self.device)

    def test_entries_come_in_any_order(self) -> None:
        """Of biases, penalties, bans and allowed ids: an entry says itself whose it is."""
        logits, batch, sampler = self.random(4, VOCAB_SIZE, 9), self._asking(), self.sampler()

        def turned(entries: Any, *names: str) -> Any:
            return replace(entries, **{name: getattr(entries, name).flip(0) for name in names})

        other = replace(
            batch,
            biases=turned(batch.biases, "sample", "token_id", "value"),
            penalties=turned(batch.penalties, "sample", "token_id", "num_output"),
            banned=batch.banned[::-1],
            allowed=batch.allowed[::-1],
        )
        got, right = (sampler.sample(logits, asked).token_ids.tolist() for asked in (other, batch))
        assert got == right, f"with the entries of biases, penalties, bans and allowed ids turned around drew {got}, before {right}"

    def test_the_batch_stays_as_it_was(self) -> None:
        """`sample` changes no tensor of the batch: the engine uses them again."""
        batch = self._asking()
        before = deepcopy(batch)
        self.sampler().sample(self.random(4, VOCAB_SIZE, 10), batch)
        changed = [name for name, old, new in _tensors(before, batch) if not torch.equal(old, new)]
        assert not changed, f"sample changed {', '.join(changed)} of the batch in place: work on a copy"

    def test_samples_of_one_row_have_their_own(self) -> None:
        """What one sample asks for changes nothing for another that draws from the same row."""
        logits = self.logits([[3.0, 2.0, 1.0, 0.5]])
        draws = [
            replace(GREEDY, banned=(0,)),
            GREEDY,
            replace(GREEDY, biases=((3, 9.0),)),
            replace(GREEDY, allowed=(2,)),
            replace(GREEDY, presence=2.0, frequency=2.0, history=((0, 1), (1, 0))),
            GREEDY,
        ]
        for order in (range(6), range(5, -1, -1)):
            got = self.draw(logits, [draws[at] for at in order], [0] * 6)
            right = [[1, 0, 3, 2, 1, 0][at] for at in order]
            assert got == right, f"six samples of one row drew {got}, expected {right}: one each with a ban, nothing, a bias, an allowed id, penalties, nothing"

    def test_all_greedy_changes_nothing(self) -> None:
        """`all_greedy` says what the temperatures say; biases, penalties, bans and allowed ids hold all the same."""
        logits = self.random(6, 30, 7)
        best = logits.argmax(-1).tolist()
        asked: list[Draw] = [
            replace(GREEDY, banned=(best[0],)),
            replace(GREEDY, allowed=((best[1] + 1) % 30,)),
            replace(GREEDY, biases=((best[2], -50.0),)),
            replace(GREEDY, repetition=9.0, presence=2.0, frequency=2.0, history=((best[3], 9),)),
            GREEDY,
            replace(GREEDY, top_k=3),
        ]
        for at in range(len(asked)):
            draws = [asked[at] if row == at else GREEDY for row in range(6)]
            said, unsaid = self.draw(logits, draws, all_greedy=True), self.draw(logits, draws)
            assert said == unsaid, f"all_greedy = True drew {said}, False drew {unsaid}; sample {at} asks for {asked[at]}, the others for nothing"

    def test_ids_outside_the_vocabulary_are_passed_over(self) -> None:
        """In bans, allowed ids, biases and penalties: they neither raise nor mean another id."""
        logits = self.logits([[1.0, 0.0, 0.5, 3.0]] * 6)
        outside = (-1, 4, 5, -4, 1 << 40)
        draws = [
            replace(GREEDY, banned=outside),
            replace(GREEDY, allowed=(*outside, 2)),
            replace(GREEDY, biases=tuple((id, -50.0) for id in outside)),
            replace(GREEDY, biases=tuple((id, 50.0) for id in (*outside[1:], -2))),
            replace(GREEDY, frequency=2.0, history=tuple((id, 9) for id in outside)),
            GREEDY,
        ]
        got = self.draw(logits, draws)
        assert got == [3, 2, 3, 3, 3, 3], f"ids {outside} of a vocabulary of 4 were asked for; drew {got}, expected [3, 2, 3, 3, 3, 3]"

    def test_a_sample_with_nothing_left_raises_nothing(self) -> None:
        """It may be given any id; its neighbours draw what they draw without it."""
        logits = self.random(3, 8, 8)
        alone = self.draw(logits, [Draw(), Draw(), GREEDY])
        for temperature in (0.0, 1.0):
            for nothing in (Draw(banned=tuple(range(8))), Draw(allowed=()), Draw(allowed=(3,), banned=(3,)), Draw(allowed=(99,), top_k=2)):
                got = self.draw(logits, [Draw(), replace(nothing, temperature=temperature), GREEDY])
                assert (got[0], got[2]) == (alone[0], alone[2]), f"beside {nothing}, which has nothing to draw, neighbours drew {got}, alone {alone}"


def _tensors(before: Any, after: Any) -> list[tuple[str, Tensor, Tensor]]:
    """Those of a batch, and of what it holds, with their names."""
    pairs = [(field.name, getattr(before, field.name), getattr(after, field.name)) for field in fields(before)]
    held = [pair for name, old, new in pairs if name in ("biases", "penalties") for pair in _tensors(old, new)]
    return [pair for pair in pairs if isinstance(pair[1], Tensor)] + held
