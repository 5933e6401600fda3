"""The kit of slot `block_allocator`: any layer, bottom or not, in a stack against the contract. Knows no implementation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from corekit.api import BlockAllocator, Blocks, SupportsAudit, SupportsEvictionSink, SupportsForgetting, SupportsPrefixCache, SupportsSwap

from .block_answers import alone, answers
from .block_calls import Calls, key_chain
from .block_cost import cost
from .block_forgetting_laws import ForgettingLaws
from .block_host_laws import HostLaws
from .block_machine import Machine, told
from .block_prefix_laws import PrefixLaws
from .block_retention_laws import RetentionLaws
from .block_stack import CACHE, found

SMALL, LARGE = 100, 10_000
NUM_WALKS, NUM_STEPS = 80, 20
PROMISES: Final = frozenset({"retention", "reservation", "shared_slots"})
"""What a part need not do, and no Protocol says: the laws of these are asked where they are declared."""
ABILITIES: Final = (
    ("prefix_cache", SupportsPrefixCache),
    ("swap", SupportsSwap),
    ("eviction_sink", SupportsEvictionSink),
    ("forgetting", SupportsForgetting),
    ("audit", SupportsAudit),
)


class BlockAllocatorKit(PrefixLaws, RetentionLaws, HostLaws, ForgettingLaws):
    """Subclass it, set `provider`, and `beneath` if the part does not stand on free-list alone. See StackKit for what can be declared.

    The laws here are those of every stack; PrefixLaws, RetentionLaws and ForgettingLaws are asked of those that cache, HostLaws of those that reach the host.
    """

    def test_abilities_are_shown(self) -> None:
        """What the kit declares in `abilities` is there: the members of the Protocol, prefix_cache True, host blocks above 0."""
        ledger = self.ledger()
        shown = {name for name, ability in ABILITIES if isinstance(ledger.stack, ability)}
        shown -= {name for name, there in (("prefix_cache", ledger.caches), ("swap", ledger.swap)) if not there}
        known = {name for name, _ in ABILITIES} | PROMISES
        assert self.abilities <= known, f"abilities are {sorted(known)}, not {sorted(self.abilities - known)}"
        assert self.abilities <= shown | PROMISES, f"declared but not shown: {sorted(self.abilities - shown - PROMISES)}"

    def test_a_layer_stands_on_the_one_beneath(self) -> None:
        """A layer keeps the layer beneath in `inner` and takes its blocks there; some more, if it keeps them ready."""
        if not self.is_layer:
            return
        context = self.context()
        assert context.inner is not None
        below, layer = context.inner, self.build(context)
        assert getattr(layer, "inner", None) is below, (
            "a layer keeps `context.inner` in its attribute `inner`, so that audits reach the layer beneath. A bottom raises ValueError when there is one"
        )
        before = below.available
        taken = layer.take(2)
        assert taken is not None, "take(2) of a fresh stack is None"
        assert below.available <= before - 2, (
            f"take(2) left {below.available} of {before} blocks available beneath: it must come from there. Set beneath = () if the part is a bottom"
        )

    def test_a_layer_passes_on_the_prefix_cache(self) -> None:
        """Over a layer with a prefix cache, `prefix_cache` is True: otherwise the core computes no keys and the layer beneath is disabled."""
        if self.passes_on:
            ledger = self.ledger(cache=True)
            assert ledger.caches, 'it hides the prefix cache of the layer beneath: give it a property prefix_cache = getattr(self.inner, "prefix_cache", False)'

    def test_a_layer_passes_on_swapping(self) -> None:
        """Over a layer that parks blocks on the host, SupportsSwap is shown: else nobody makes the host blocks that the layer beneath copies to."""
        below: Any = self.context().inner
        if isinstance(below, SupportsSwap) and below.num_host_blocks:
            swap = self.ledger().swap
            assert swap is not None, "the layer beneath swaps: pass on num_host_blocks, swap_out, swap_in and drop"
            assert swap.num_host_blocks >= below.num_host_blocks, f"num_host_blocks is {swap.num_host_blocks}, of the layer beneath {below.num_host_blocks}"

    def test_the_whole_pool_is_handed_out_and_nothing_else(self) -> None:
        """All of 1..num_blocks can be taken, each once; block 0 never."""
        for make in self.makers():
            ledger = make(7)
            assert ledger.stack.available == 7, f"{ledger.stack.available} of 7 blocks are available at the start"
            taken = [ledger.take(1) for _ in range(7)]
            assert sorted(ids[0] for ids in taken if ids) == list(range(1, 8)), f"seven takes of one block gave {taken}"

    def test_available_is_exact(self) -> None:
        """At any moment take(available) succeeds and take(available + 1) is None."""
        for make in self.makers():
            for used in range(6):
                ledger = make(6)
                ledger.take(used)
                there = ledger.stack.available
                assert ledger.stack.take(there + 1) is None, f"take({there + 1}) of {there} blocks must be None"
                assert ledger.take(there) is not None, f"available says {there}, but take({there}) refuses"

    def test_a_refusal_changes_nothing(self) -> None:
        """A take that is refused changes neither counts nor what is found, and the next one gets all there is."""
        for make in self.makers():
            ledger = make(8)
            chain = key_chain(1, 2)
            ledger.give(ledger.fill(chain) if ledger.caches else ledger.take(2) or [])
            ledger.take(3)
            before, found = ledger.stack.stats(), [ledger.cached(key) for key in chain]
            assert ledger.take(6) is None, "take(6) of 5 blocks must be None"
            assert ledger.stack.stats() == before, f"a refused take changed {before} into {ledger.stack.stats()}"
            assert [ledger.cached(key) for key in chain] == found, "a refused take evicted something"
            assert ledger.take(5) is not None, "after a refusal the blocks that are there cannot be taken"

    def test_what_is_given_comes_back(self) -> None:
        """However often tables come and go, in whatever order, nothing is lost."""
        for make in self.makers():
            ledger = make(6)
            for turn in range(40):
                tables = [ledger.take(1 + turn % 2) or [] for _ in range(3)]
                for table in tables if turn % 3 else tables[::-1]:
                    ledger.give(table)
                assert ledger.stack.available == 6, f"after {turn + 1} rounds {ledger.stack.available} of 6 blocks are left"

    def test_stats_add_up(self) -> None:
        """num_free + num_idle is `available`, whatever is used; num_evicted never falls."""
        for make in self.makers():
            ledger, evicted = make(6), 0
            for turn in range(6):
                table = ledger.fill(key_chain(turn, turn + 100)) if ledger.caches else ledger.take(2)
                for _ in range(2):
                    stats = ledger.stack.stats()
                    assert stats.num_free + stats.num_idle == ledger.stack.available, f"{stats}, but available is {ledger.stack.available}"
                    assert stats.num_evicted >= evicted, f"num_evicted fell from {evicted} to {stats.num_evicted}"
                    evicted = stats.num_evicted
                    ledger.give(table or [])
                    table = None

    def test_the_cost_of_a_block_does_not_grow_with_the_pool(self) -> None:
        """Every operation is O(1) per block: instructions and comparisons of blocks are counted in a small and a large pool."""
        for make in self.makers():
            small, large = cost(make(SMALL)), cost(make(LARGE))
            for name, count in large.items():
                assert count <= 3 * small[name] + 100, f"{name} costs {small[name]} in a pool of {SMALL} blocks and {count} in one of {LARGE}"

    def test_every_request_reads_its_own_tokens(self) -> None:
        """An engine that does what the dice say: requests share, fork, are parked, dropped and aborted; in every step each reads what it wrote."""
        for make in self.everywhere(Calls):
            for seed in range(NUM_WALKS):
                with told(seed):
                    Machine(make(3 + seed % 10), seed).run(NUM_STEPS)

    def test_everything_is_back_at_the_end(self) -> None:
        """When every request of such an engine has ended, every block is available, nothing is parked and every layer's audit is clean."""
        for make in self.everywhere(Calls):
            for seed in range(NUM_WALKS, NUM_WALKS + 15):
                with told(seed):
                    machine = Machine(calls := make(5 + seed % 5), seed)
                    machine.run(NUM_STEPS)
                    machine.end()
                    assert calls.stack.available == calls.num_blocks, f"{calls.stack.available} of {calls.num_blocks} blocks are back"
                    calls.check_stats()
                    assert not (problems := list(_audit(calls.stack))), f"the audits say {problems}"

    def test_order_of_a_given_table_is_kept(self) -> None:
        """A layer that passes a table down passes it in table order: which block is evicted first depends on it."""
        if not self.is_layer:
            return
        context = self.context()
        spy = _Spy(context.inner)
        layer = self.build(replace(context, inner=spy))
        taken = layer.take(4)
        layer.give(Blocks(taken.ids[:3]))
        assert tuple(spy.given) == taken.ids[:3], f"give{taken.ids[:3]} arrived beneath as {tuple(spy.given)}"

    def test_the_engine_answers_the_same(self) -> None:
        """A whole engine on this stack, with a pool too small for its requests, answers each as if it were alone; its audit is clean."""
        stacks = [self.layers]
        if self.passes_on:
            stacks.append((self.layers[0], found(CACHE), *self.layers[1:]))
        for stack in stacks:
            for parks in (False, True) if self.ledger().swap else (False,):
                together = answers(stack, self.options, num_blocks=14, together=True, parks=parks)
                assert together == alone(), (
                    f"on {[layer.name for layer in stack]}, with preemption by {'swap' if parks else 'recompute'}, the tokens of a request change: "
                    "a block had two owners, or was found with other content"
                )


class _Spy:
    """Hands everything on; remembers what was given, in order."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.given: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def give(self, blocks: Blocks) -> None:
        self.given.extend(blocks.ids)
        self._inner.give(blocks)


def _audit(layer: BlockAllocator | None) -> Iterator[str]:
    while layer is not None:
        if isinstance(layer, SupportsAudit):
            yield from layer.audit()
        layer = getattr(layer, "inner", None)
