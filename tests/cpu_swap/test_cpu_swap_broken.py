"""A layer beneath that breaks its word: refused while nothing is changed, told by name once it is too late; never a wrong block."""

from __future__ import annotations

from typing import Any

import pytest
from cpu_swap_rig import Rig, key_chain

from corekit.api import Blocks, PrefixQuery, Ticket

KEYS = key_chain(1, 2)


def parked(num_private: int = 0) -> tuple[Rig, Any, Ticket]:
    """A request of two keys, which stay on the device, and of private blocks, which do not."""
    rig = Rig(beneath="plain")
    ticket, _ = rig.park(KEYS, num_private)
    assert isinstance(ticket, Ticket)
    return rig, rig.layer.inner, ticket


def held(rig: Rig) -> tuple[object, int, int]:
    return rig.layer.stats(), rig.journal.num_in, rig.journal.num_out


@pytest.mark.parametrize(("method", "num_private"), [("hold", 1), ("take", 3)])
def test_what_is_refused_at_first_is_refused(method: str, num_private: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, inner, ticket = parked(num_private)
    if method == "take":
        rig.evict()
    before = held(rig)
    with monkeypatch.context() as patch:
        patch.setattr(inner, method, lambda *asked: None)
        assert rig.layer.swap_in(ticket) is None
        if method == "take":
            assert rig.layer.hold(rig.layer.find(PrefixQuery(KEYS))) is None
    assert held(rig) == before
    back = rig.layer.swap_in(ticket)
    assert back is not None and len(back.ids) == 2 + num_private, "the ticket is as good as before"


@pytest.mark.parametrize(
    ("method", "answer", "said"),
    [
        ("hold", lambda blocks: Blocks(blocks.ids[:1]), r"PlainPrefixCache\.hold, beneath cpu-swap, gave 1 blocks where 2 were due: it promises all that"),
        ("take", lambda blocks: None, r"PlainPrefixCache\.take, beneath cpu-swap, gave nothing where 3 were due: it promises as many as are asked for"),
        ("take", lambda blocks: Blocks(blocks.ids[:1]), r"PlainPrefixCache\.take, beneath cpu-swap, gave 1 blocks where 3 were due"),
    ],
)
def test_what_comes_too_late_to_refuse_is_told_by_name(method: str, answer: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, inner, ticket = parked(num_private=3)
    honest = getattr(inner, method)
    monkeypatch.setattr(inner, method, lambda asked: answer(honest(asked)))
    with pytest.raises(RuntimeError, match=said):
        rig.layer.swap_in(ticket)


def test_a_hold_that_breaks_leaves_no_slot_referenced(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, inner, ticket = parked()
    rig.evict()
    rig.layer.drop(ticket)
    monkeypatch.setattr(inner, "take", lambda count: Blocks((1,)))
    with pytest.raises(RuntimeError, match=r"\.take, .* gave 1 blocks where 2 were due"):
        rig.layer.hold(rig.layer.find(PrefixQuery(KEYS)))
    assert rig.host == (2, 2)
    assert not list(rig.layer.audit())


def test_content_that_was_forgotten_without_a_word_is_not_made_up() -> None:
    """The request then computes again."""
    rig, inner, ticket = parked(num_private=1)
    inner.set_sink(lambda block, key: None)
    rig.evict()
    before = held(rig)
    assert rig.layer.swap_in(ticket) is None
    assert held(rig) == before
    rig.layer.drop(ticket)
    assert rig.host == (0, 0)
    assert not list(rig.layer.audit())
