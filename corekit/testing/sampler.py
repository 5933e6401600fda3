"""Kit of slot `sampler`: draws are pure, know no neighbour, and follow the distribution that was asked for.

Only what the contract says: which of several equal ids is the likeliest, and how numbers are drawn, is the part's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import torch

from corekit.api import SupportsLogprobs

from .draws import GREEDY, LEAST_P_VALUE, Draw, chi_square_p, probabilities
from .sampler_filter_laws import FilterLaws
from .sampler_shaping_laws import ShapingLaws

_VOCAB_SIZE = 300


def random_draw(rng: Random) -> Draw:
    """Anything that a sample may ask for, extremes included."""

    def ids(most: int) -> list[int]:
        return rng.sample(range(_VOCAB_SIZE), rng.randint(0, most))

    return Draw(
        temperature=rng.choice((0.0, 1e-30, 0.3, 1.0, 2.0)),
        top_k=rng.choice((0, -1, 1, 3, 270, 10_000)),
        top_p=rng.choice((1e-4, 0.5, 0.95, 1.0)),
        min_p=rng.choice((0.0, 0.1, 1.0)),
        seed=rng.choice((0, 1, -(2**63), 2**63 - 1)),
        position=rng.randrange(100_000),
        index=rng.randrange(128),
        banned=tuple(ids(3)),
        allowed=rng.choice((None, None, tuple(rng.sample(range(_VOCAB_SIZE), 20)))),
        biases=tuple((id, rng.uniform(-5, 5)) for id in ids(3)),
        repetition=rng.choice((1.0, 1.5)),
        presence=rng.choice((0.0, 1.0)),
        frequency=rng.choice((0.0, -0.5)),
        history=tuple((id, rng.randint(0, 3)) for id in ids(4)),
    )


class SamplerKit(FilterLaws, ShapingLaws):
    """Subclass it and set `provider`; `device` if the part works elsewhere than on a CPU. Laws of logprobs are asked of a part that shows them."""

    # -- rows ------------------------------------------------------------------------------------------------------

    def test_a_sample_draws_from_the_row_that_it_names(self) -> None:
        """`logits_row`: rows may be named in any order, several times, or not at all; each sample gets one int64 id of the vocabulary."""
        logits = torch.full((5, 9), -50.0, device=self.device)
        logits[torch.arange(5), torch.tensor([4, 0, 8, 2, 6])] = 50.0
        for rows in ([2], [0, 1, 2, 3, 4], [3, 1, 4, 0, 2], [4, 4, 0], [3, 1, 3, 3, 0, 2, 4, 4]):
            for draw in (GREEDY, Draw()):
                got = self.draw(logits, [draw] * len(rows), rows)
                right = [[4, 0, 8, 2, 6][row] for row in rows]
                assert got == right, f"rows {rows} of logits with one peak each drew {got}, expected the peaks {right}"

    def test_a_draw_knows_no_neighbour(self) -> None:
        """Alone, permuted, repeated or between others, a sample draws the same id."""
        sampler, rng = self.sampler(), Random(8)
        for case in range(30):
            draws = [rng.choice((random_draw(rng), Draw(position=case, index=at))) for at in range(rng.randint(1, 6))]
            count, logits = len(draws), self.random(len(draws), _VOCAB_SIZE, case, width=rng.choice((0.5, 4.0)))
            if case % 2:
                logits = logits.round()  # many equal values: no order among them may come from the batch
            alone = [self.draw(logits[at : at + 1], [draw], sampler=sampler)[0] for at, draw in enumerate(draws)]
            order = rng.sample(range(count), count)
            permuted, right = self.draw(logits, [draws[at] for at in order], order, sampler=sampler), [alone[at] for at in order]
            assert permuted == right, f"in the order {order} drew {permuted}, alone {right}; {draws}"
            padded = torch.cat([torch.full((2, _VOCAB_SIZE), 9.0, device=self.device), logits])
            rows = range(2, 2 + count)
            among = self.draw(padded, [Draw(top_p=0.9), *draws, Draw(), *draws], [0, *rows, 1, *rows], sampler=sampler)
            assert among[1 : 1 + count] == alone, f"between others drew {among[1 : 1 + count]}, alone {alone}; {draws}"
            assert among[2 + count :] == alone, f"the second time in one batch drew {among[2 + count :]}, alone {alone}; {draws}"

    def test_a_large_batch_draws_what_its_parts_draw(self) -> None:
        """A sampler may work in chunks, or choose another way for many samples or large vocabularies: nobody can tell."""
        rng = Random(9)
        logits = self.random(48, 16_000, 9)
        draws = [Draw(position=at, temperature=rng.choice((0.0, 0.7, 1.0)), top_k=rng.choice((0, 40)), top_p=rng.choice((1.0, 0.9))) for at in range(48)]
        draws = [replace(draw, banned=(at,), biases=((at + 50, 30.0 * (at % 3)),), presence=0.5, history=((at, 1),)) for at, draw in enumerate(draws)]
        whole = self.draw(logits, draws)
        parts = [id for at in range(0, 48, 16) for id in self.draw(logits[at : at + 16], draws[at : at + 16])]
        assert whole == parts, f"48 samples of 16,000 ids drew {whole}, in three parts {parts}"

    def test_logits_stay_as_they_were(self) -> None:
        """`sample` works on a copy of what it changes: rows are shared, and logprobs are read from them afterwards."""
        logits = self.random(3, 40, 10)
        before = logits.clone()
        asked = Draw(banned=(1,), allowed=(1, 2, 3), biases=((2, 5.0),), repetition=2.0, presence=1.0, history=((2, 1), (3, 0)), top_k=2)
        for draws in ([asked, Draw(), GREEDY], [replace(asked, temperature=0.0)] * 3, [replace(GREEDY, banned=(1,))] * 3):
            self.draw(logits, draws)
            self.draw(logits, [replace(draw, temperature=0.0) for draw in draws], all_greedy=True)
            assert torch.equal(logits, before), f"logits were changed by {draws[0]}"

    def test_broken_rows_stay_alone(self) -> None:
        """NaN and infinities raise nothing and change nothing for a neighbour; the row itself may get any id."""
        logits = self.random(3, 50, 11)
        draws = [Draw(top_p=0.9), Draw(), Draw(top_k=4)]
        sound = self.draw(logits, draws)
        for value in (float("nan"), float("inf"), float("-inf")):
            for where in (slice(None), slice(7, 8), slice(3, 40)):
                broken = logits.clone()
                broken[1, where] = value
                for middle in (Draw(), GREEDY, Draw(top_k=5, top_p=0.5, min_p=0.1), Draw(repetition=1.5, frequency=1.0, history=((7, 2),), biases=((8, 1.0),))):
                    got = self.draw(broken, [draws[0], middle, draws[2]])
                    assert (got[0], got[2]) == (sound[0], sound[2]), f"beside a row with {value} drew {got}, beside a sound one {sound}"

    def test_every_dtype_of_logits(self) -> None:
        """Half, single and double precision."""
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            logits = (self.random(4, 60, 12) * 4).to(dtype)
            right = logits.argmax(-1).tolist()
            for draw in (GREEDY, Draw(temperature=1e-6), Draw(top_k=1), Draw(top_p=1e-4)):
                got = self.draw(logits, [draw] * 4)
                assert [row[id] for row, id in zip(logits.tolist(), got, strict=True)] == logits.amax(-1).tolist(), (
                    f"{draw} on {dtype}: {got}, expected {right}"
                )

    def test_logits_may_be_a_view(self) -> None:
        """A model may hand over the columns of a wider table: what lies beside them in memory changes nothing."""
        wide = self.random(4, 70, 12)
        view, draws = wide[:, 5:65], [Draw(), GREEDY, Draw(top_p=0.9, banned=(3,)), Draw(temperature=0.5, top_k=9)]
        got, right = self.draw(view, draws), self.draw(view.clone(), draws)
        assert got == right, f"60 columns of 70 drew {got}, and a copy of them {right}"

    # -- numbers ---------------------------------------------------------------------------------------------------

    def test_equal_arguments_draw_equal_ids(self) -> None:
        """There is no generator with a state: called again, after others, or as another component, a step draws the same."""
        logits, draws = self.random(8, 200, 13, width=0.5), [Draw(position=at, index=at % 3) for at in range(8)]
        sampler = self.sampler()
        first = self.draw(logits, draws, sampler=sampler)
        self.draw(logits, [Draw(seed=at) for at in range(5)], sampler=sampler)
        torch.manual_seed(12345)
        for again in (self.draw(logits, draws, sampler=sampler), self.draw(logits, draws)):
            assert again == first, f"the same step drew {first} and then {again}"

    def test_seed_position_and_index_each_count(self) -> None:
        """64 samples of one prompt differ from each other, and so do 64 positions and 64 seeds, extreme ones included."""
        flat = [0.0] * 4000
        for name in ("seed", "position", "index"):
            different = len(set(self.draw(self.logits([flat]), self.along(name, range(64)), [0] * 64)))
            assert different > 55, f"64 draws from 4000 equal ids that differ in their {name} gave {different} different ids, expected more than 55"
        seeds = [Draw(seed=seed) for seed in (-(2**63), -1, 0, 2**31, 2**32, 2**53, 2**53 + 1, 2**63 - 1)]
        assert len(set(self.draw(self.logits([flat]), seeds, [0] * 8))) >= 7, "seeds are signed 64-bit integers, and all of their bits count"

    def test_streams_do_not_repeat_one_another(self) -> None:
        """What one seed draws at a position is not what another draws at the next, nor what another sample does."""
        base = [Draw(seed=seed, position=position, index=index) for seed in range(6, 14) for position in range(20, 60) for index in (2, 3, 4)]
        shifts: tuple[Callable[[Draw], Draw], ...] = (
            lambda d: replace(d, seed=d.seed + 1, position=d.position - 1),
            lambda d: replace(d, position=d.position + 1, index=d.index - 1),
            lambda d: replace(d, seed=d.seed - 1, index=d.index + 1),
            lambda d: replace(d, seed=d.seed ^ 1, position=d.position ^ 1),
            lambda d: replace(d, position=d.position ^ 2, index=d.index ^ 2),
            lambda d: replace(d, seed=d.position, position=d.seed),
            lambda d: replace(d, position=d.index, index=d.position),
        )
        flat, first = self.logits([[0.0] * 100]), self.draw(self.logits([[0.0] * 100]), base, [0] * len(base))
        for shift in shifts:
            other = self.draw(flat, [shift(d) for d in base], [0] * len(base))
            equal = sum(a == b for a, b in zip(first, other, strict=True))
            assert equal < len(base) // 20, (
                f"{equal} of {len(base)} draws from 100 equal ids are those of another seed, position and index ({base[0]} -> {shift(base[0])})"
            )

    def test_draws_are_even_along_every_axis(self) -> None:
        """Successive seeds, positions and indices give even and independent draws (chi-square)."""
        count, size = 6000, 16
        for name in ("seed", "position", "index"):
            ids = self.draw(self.logits([[0.0] * size]), self.along(name, range(count)), [0] * count)
            for what, seen, bins in (
                ("draws", np.bincount(ids, minlength=size), size),
                ("pairs of neighbours", np.bincount([a * size + b for a, b in zip(ids[::2], ids[1::2], strict=True)], minlength=size * size), size * size),
            ):
                p = chi_square_p(dict(enumerate(seen.tolist())), np.full(bins, seen.sum() / bins))
                assert p > LEAST_P_VALUE, f"{what} along {name} are not even (chi-square p = {p:.1e}): {seen.tolist()}"

    # -- temperature -----------------------------------------------------------------------------------------------

    def test_temperature_zero_takes_the_highest(self) -> None:
        """In a batch of other temperatures as well; filters change nothing; of equal ones, one of the highest."""
        logits = self.random(6, 80, 14)
        logits[4, :] = 1.0
        logits[5, 10:20] = 9.0
        draws = [GREEDY, replace(GREEDY, top_k=4), Draw(), replace(GREEDY, top_p=0.1), GREEDY, replace(GREEDY, min_p=1.0, seed=7)]
        got = self.draw(logits, draws)
        for at in (0, 1, 3, 4, 5):
            assert logits[at, got[at]] == logits[at].max(), f"{draws[at]} drew {got[at]}, the highest logit is that of {int(logits[at].argmax())}"

    def test_tiny_temperatures_are_greedy(self) -> None:
        """They never overflow, however large or small the logits are."""
        for width in (1.0, 100.0, 1e4):
            logits = self.random(4, 100, 15, width)
            logits[0] -= 3 * width
            logits[1, 7] = float("-inf")
            for temperature in (1e-4, 1e-8, 1e-12, 1e-30, 1e-38, 1e-45):
                got = self.draw(logits, [Draw(temperature=temperature, position=at) for at in range(4)])
                right = logits.argmax(-1).tolist()
                assert got == right, f"temperature {temperature} on logits of about {width} drew {got}, expected the highest, {right}"

    def test_draws_follow_the_softmax(self) -> None:
        """Logits divided by the temperature, then softmax (chi-square against float64)."""
        logits = self.random(1, 12, 16, width=1.5)[0].tolist()
        for temperature in (0.5, 1.0, 2.0):
            self.check_distribution(logits, Draw(temperature=temperature))
            self.check_distribution([x - 300 for x in logits], Draw(temperature=temperature))

    def test_unlikely_ids_are_drawn_as_often_as_they_should(self) -> None:
        """The tail of a large vocabulary counts as a whole, though no id of it does."""
        logits = [7.6, *[0.0] * 1999]
        share, count = float(probabilities(logits, Draw())[0]), 1500
        seen = self.draw_many(logits, Draw(), count)
        p = chi_square_p({0: seen[0], 1: count - seen[0]}, np.array([share, 1 - share]) * count)
        assert p > LEAST_P_VALUE, f"one id holds {share:.3f} of the probability and was drawn {seen[0]} times of {count} (chi-square p = {p:.1e})"
        assert len(seen) > 0.7 * (count - seen[0]), f"{count - seen[0]} draws from a flat tail of 1999 ids gave {len(seen) - 1} different ones"

    def test_impossible_ids_are_never_drawn(self) -> None:
        """A logit of -inf is a probability of 0, at the edges of the vocabulary and between."""
        logits = [float("-inf")] * 40
        for at, id in enumerate((1, 17, 38)):
            logits[id] = float(at)
        for draw in (GREEDY, Draw(), Draw(temperature=2.0), Draw(top_k=10), Draw(top_p=0.999), Draw(min_p=0.01), Draw(temperature=1e-20)):
            seen = set(self.draw_many(logits, draw, 800))
            assert seen <= {1, 17, 38}, f"{draw} drew {sorted(seen - {1, 17, 38})}, whose logits are -inf"

    # -- logprobs --------------------------------------------------------------------------------------------------

    def test_logprobs_are_of_the_logits_as_they_are(self) -> None:
        """Natural logarithms of the softmax of each sample's row, for the id that it drew."""
        sampler = self.sampler()
        if not isinstance(sampler, SupportsLogprobs):
            return
        logits = self.random(3, 90, 17, width=5.0)
        rows, ids = torch.tensor([2, 0, 2, 1], device=self.device), torch.tensor([7, 8, 9, 89], device=self.device)
        right = logits.double().log_softmax(-1)[rows, ids].tolist()
        for num_top in (0, 1, 5):
            got = sampler.logprobs(logits, rows, ids, num_top)
            assert got.chosen.shape == (4,), f"chosen has the shape {tuple(got.chosen.shape)}, expected (4,)"
            assert np.allclose(got.chosen.tolist(), right, atol=1e-4), f"logprobs of ids {ids.tolist()} are {got.chosen.tolist()}, expected {right}"

    def test_top_logprobs_come_likeliest_first(self) -> None:
        """As many as were asked for, each id once, each with its logprob; the likeliest there are."""
        sampler = self.sampler()
        if not isinstance(sampler, SupportsLogprobs):
            return
        logits = torch.cat([self.random(2, 90, 18, width=5.0), self.random(1, 90, 18).round()])
        rows = torch.tensor([1, 0, 2], device=self.device)
        values = logits.double().log_softmax(-1)[rows].cpu()
        for num_top in (0, 1, 5, 20):
            got = sampler.logprobs(logits, rows, torch.tensor([1, 2, 3], device=self.device), num_top)
            ids, shown = got.top_ids.cpu(), got.top.cpu().double()
            assert ids.shape == shown.shape == (3, num_top), f"num_top = {num_top}: shapes {tuple(ids.shape)} and {tuple(shown.shape)}, expected (3, {num_top})"
            assert all(len(set(row)) == num_top for row in ids.tolist()), f"an id is shown twice: {ids.tolist()}"
            assert torch.allclose(values.gather(1, ids), shown, atol=1e-4), "a shown logprob is not that of its id"
            assert torch.allclose(values.sort(1, descending=True).values[:, :num_top], shown, atol=1e-4), f"expected the likeliest first, got {shown.tolist()}"
