"""The audit sees every way in which host slots can be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from corekit_cpu_swap.slots import HostSlots
from cpu_swap_rig import Rig, key_chain


def _sound() -> Rig:
    """Two slots are cached, one is free again, the others were never used."""
    rig = Rig(num_blocks=4, host=8, max_cached=2)
    ticket, _ = rig.park(key_chain(1, 2), num_private=1)
    rig.evict()
    rig.give(rig.swap_in(ticket) or [])
    return rig


FAULTS: dict[str, Callable[[Any], object]] = {
    "freed twice": lambda slots: slots._given.append(slots._given[0]),
    "still reference": lambda slots: slots.claim(None, awaited=False),
    "wait for their content": lambda slots: slots._awaited.add(1),
    "two states": lambda slots: slots._given.append(next(iter(slots._cached))),
    "lost": lambda slots: slots._given.clear(),
    "not of this space": lambda slots: slots._given.append(7),
    "are cached of": lambda slots: setattr(slots, "_max_cached", 1),
    "of 8 were used": lambda slots: (setattr(slots, "_next", 9), slots._given.extend(range(3, 9))),
    "do not agree": lambda slots: slots.slot_of.popitem(),
}


@pytest.mark.parametrize("said", FAULTS)
def test_it_says_what_is_wrong(said: str) -> None:
    rig = _sound()
    assert rig.layer.audit() == []
    FAULTS[said](rig.layer._slots)
    assert any(said in problem for problem in rig.layer.audit()), rig.layer.audit()


def test_a_parked_request_is_not_idle() -> None:
    rig = _sound()
    ticket, _ = rig.park(key_chain(5))
    assert "reference" in rig.layer.audit()[0]
    rig.drop(ticket)
    assert rig.layer.audit() == []


def test_a_huge_space_is_made_and_audited_at_once() -> None:
    slots = HostSlots(1 << 30, 1 << 29)
    slots.release([slots.claim(None, awaited=False)])
    assert slots.num_free == 1 << 30
    assert not list(slots.audit())
