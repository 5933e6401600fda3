"""Judges what was drawn: whether its row could draw it, and in words why not. Plain Python; knows rows and masks, no device."""

from __future__ import annotations

import numpy as np

from .restrictions import Restrictions

_MAX_SHOWN = 20
"""Ids in a message."""


class Judge:
    """Of one row: a draw is permitted when its restrictions and its mask both permit it."""

    def __init__(self, held: Restrictions | None, tokens: list[int], mask: bytes | None) -> None:
        self._held, self._tokens, self._mask = held, tokens, mask

    def permits(self, id: int, guesses: tuple[int, ...] = ()) -> bool:
        """Whether the row may draw `id` after these guesses. A mask holds for the first draw only, and there are no guesses under one."""
        if self._mask is not None and not (id >> 3 < len(self._mask) and self._mask[id >> 3] >> (id & 7) & 1):
            return False
        return self._held is None or self._held.permits(id, self._tokens, guesses)

    def why(self, id: int, sampler: str, vocab_size: int) -> str:
        """What to tell the request whose first draw gave an id that it may not draw."""
        left, steps, against = set(range(vocab_size)), [], []
        for name, keeps, ids in self._named():
            kept = left & set(ids) if keeps else left - set(ids)
            if id in left and id not in kept:
                against.append(name)
            if len(kept) < len(left):
                steps.append(f"{name} leaves {len(kept)} of {len(left)}")
            left = kept
        if not left:
            return f"there is no id left to draw: {', '.join(steps)}; ask for less of these together"
        some = f"{sorted(left)[:_MAX_SHOWN]}{' and more' if len(left) > _MAX_SHOWN else ''}"
        return (
            f"sampler {sampler}.sample drew {id}, which {' and '.join(against)} forbids, though {len(left)} ids are permitted: {some};"
            " the sampler passes over what its batch forbids, or the model gave all of these the logit -inf"
        )

    def _named(self) -> list[tuple[str, bool, tuple[int, ...]]]:
        named = []
        if self._mask is not None:
            bits = np.flatnonzero(np.unpackbits(np.frombuffer(self._mask, np.uint8), bitorder="little"))
            named.append(("the mask of the logits processors", True, tuple(bits.tolist())))
        return named + (self._held.named(self._tokens) if self._held is not None else [])
