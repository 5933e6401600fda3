"""Laws of the sampler's filters: top_k, min_p and top_p, in this order. Knows no implementation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .draws import Draw, DrawKit, probabilities

PLAIN = (2.0, 0.5, 1.5, -1.0, 1.0, 0.0, -0.5, -2.0)
"""Eight logits without ties; their ids by falling logit are 0, 2, 4, 1, 5, 6, 3, 7."""


class FilterLaws(DrawKit):
    """What the filters leave is seen from outside: by what many draws give."""

    def _check_kept(self, draw: Draw, logits: Sequence[float] = PLAIN) -> None:
        kept = set(np.flatnonzero(probabilities(logits, draw)).tolist())
        seen = set(self.draw_many(logits, draw, 1000))
        assert seen == kept, f"{draw} drew {sorted(seen)} of logits {list(logits)}, expected {sorted(kept)}"

    def test_top_k_keeps_the_k_likeliest(self) -> None:
        """1 is the likeliest alone; 0, -1 and what is not below the vocabulary's size keep all; no more than k of equal ids are drawn."""
        for top_k in (1, 2, 5, 7, 8, 0, -1, 9, 2**31 - 1):
            self._check_kept(Draw(top_k=top_k, temperature=2.0))
        equal = set(self.draw_many([0.0] * 300, Draw(top_k=3), 1000))
        assert len(equal) <= 3, f"top_k = 3 of 300 equal logits drew {len(equal)} different ids"

    def test_top_p_keeps_the_shortest_that_reaches_it(self) -> None:
        """The id with which the sum reaches p is kept; the next is not. Tiny values keep the likeliest, 1 keeps all."""
        for top_p in (1e-4, 0.3, 0.5, 0.7, 0.9, 0.97, 1.0):
            self._check_kept(Draw(top_p=top_p, temperature=1.5))

    def test_min_p_is_a_share_of_the_likeliest(self) -> None:
        """What weighs less than min_p times the likeliest is dropped; 0 keeps all, 1 the likeliest, however small its own probability is."""
        for min_p in (0.0, 0.1, 0.3, 0.55, 1.0):
            self._check_kept(Draw(min_p=min_p, temperature=1.5))
        flat = [0.0] * 400 + [-1.0] * 400
        seen = set(self.draw_many(flat, Draw(min_p=0.5), 1000))
        assert seen <= set(range(400)), "min_p = 0.5 drew an id of 0.37 times the probability of the likeliest"
        assert len(seen) > 100, f"min_p = 0.5 keeps 400 equal ids, of which 1000 draws gave {len(seen)}"

    def test_filters_look_deep_into_large_vocabularies(self) -> None:
        """Filters that keep hundreds of ids keep exactly these."""
        logits = [-at / 300 for at in range(700)]
        for draw in (Draw(top_k=450), Draw(top_p=0.8), Draw(min_p=0.2), Draw(top_k=550, top_p=0.7, min_p=0.15)):
            allowed = int((probabilities(logits, draw) > 0).sum())
            seen = self.draw_many(logits, draw, 600)
            assert max(seen) < allowed, f"{draw} keeps the first {allowed} of 700 falling logits, and drew {max(seen)}"
            assert max(seen) > allowed - 40, f"{draw} keeps the first {allowed} of 700 falling logits; the last that 600 draws gave is {max(seen)}"

    def test_filters_come_in_order(self) -> None:
        """top_k and min_p first; top_p looks at the probabilities of what they left."""
        shares = [0.4, 0.3, 0.2, 0.1]
        logits = np.log(shares).tolist()
        for draw in (Draw(top_k=2, top_p=0.55), Draw(min_p=0.6, top_p=0.55), Draw(top_k=3, top_p=0.75), Draw(top_k=3, min_p=0.7, top_p=0.5)):
            self._check_kept(draw, logits)

    def test_filtered_draws_follow_what_is_left(self) -> None:
        """What the filters leave keeps its proportions."""
        for draw in (Draw(top_k=4), Draw(top_p=0.8), Draw(min_p=0.2), Draw(temperature=1.5, top_k=6, top_p=0.9, min_p=0.05)):
            self.check_distribution(PLAIN, draw)
