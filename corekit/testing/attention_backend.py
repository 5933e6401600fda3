"""The kit of slot `attention_backend`: any backend against dense causal attention in float64. Knows no implementation."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import torch
from torch import Tensor

from corekit.api import BatchLayout, BlockRef, Copy

from .attention_features import MAX_TOKENS
from .attention_kv_write import KvWriteLaws
from .attention_rig import NUM_HOST_BLOCKS, AttentionRig, Row
from .block_answers import alone, answers
from .block_stack import found

NAN = float("nan")


class AttentionBackendKit(KvWriteLaws):
    """Subclass it, set `provider`, and declare what the backend can do: dtypes, block_sizes, head_dims, features. See FeatureLaws.

    Everything goes through the contract: the kit never looks into pools, so they may be laid out in any way.
    """

    def test_steps_of_any_shape(self) -> None:
        """Random steps of decodes, chunks and whole prompts, over several layers, equal dense attention."""
        for rig in self.rigs(self.spec(), self.spec(num_kv_heads=4)):
            choose = random.Random(rig.block_size)
            for _ in range(4):
                _free(rig)
                rows = [(rig.row(), choose.randint(1, 17)) for _ in range(choose.randint(1, 4))]
                for _ in range(6):
                    step = [(row, min(left, choose.choice((1, 3, 5))) if left > 0 else 1) for row, left in rows if left > -3]
                    if not step:
                        break
                    self.close(
                        rig, sorted(step, key=lambda item: item[1] != 1), f"a step of rows (length before, new tokens) {[(r.length, c) for r, c in step]}"
                    )
                    added = {id(row): count for row, count in step}
                    rows = [(row, left - added.get(id(row), 0)) for row, left in rows]

    def test_query_heads_share_kv_heads(self) -> None:
        """Head h reads KV head h // (num_heads // num_kv_heads): one for each, groups, and one for all."""
        for num_heads, num_kv_heads in ((4, 4), (6, 2), (4, 1)):
            self.grown(self.spec(num_heads=num_heads, num_kv_heads=num_kv_heads), said=f"{num_heads} heads on {num_kv_heads} KV heads, in contiguous groups")

    def test_scale(self) -> None:
        """Scores are query times key times the layer's own scale, which need not be that of its dimension."""
        self.grown(self.spec(scale=1.0), self.spec(scale=0.05), said="layers with scale 1.0 and 0.05")

    def test_a_prompt_of_one_token(self) -> None:
        """One query token does not mean decode: a row of one token may have no past, or be the last piece of a prompt."""
        for rig in self.rigs():
            fresh, pieced, old = rig.row(), rig.row(), rig.row()
            self.close(rig, [(pieced, 4), (old, 9)], "two prompts")
            self.close(rig, [(pieced, 1), (fresh, 1), (old, 1)], "rows of one token: the end of a prompt, a whole prompt, a decode")

    def test_long_rows(self) -> None:
        """Rows of some six hundred positions, by chunks and then by decodes, beside a short one."""
        for rig in self.rigs(num_tokens=MAX_TOKENS):
            long, short = rig.row(), rig.row()
            for rows in ([(long, 250)], [(long, 250)], [(short, 3), (long, 130)], [(long, 1), (short, 1)], [(short, 1), (long, 1)]):
                self.close(rig, rows, f"rows (length before, new tokens) {[(row.length, count) for row, count in rows]}")

    def test_unwritten_memory_never_leaks(self) -> None:
        """Blocks hold NaN beyond what their new owner wrote, and a table may end in blocks that nobody wrote yet: neither affects a result."""
        for rig in self.rigs():
            _poison(rig)
            size = rig.block_size
            rows = [(rig.row(1), 1), (rig.row(2), size + 1), (rig.row(4), size + 2)]
            self.close(rig, rows, "rows whose blocks held NaN before, in positions that nobody wrote since")
            self.close(rig, [(row, 1) for row, _ in rows], "decodes of rows whose blocks held NaN before")

    def test_a_slot_of_minus_one_writes_nothing(self) -> None:
        """Tokens whose slot is -1 leave the whole pool as it is, its last block included; they attend to what is there."""
        for rig in self.rigs():
            rows = [rig.row(1) for _ in range(rig.num_blocks)]
            _fill(rig, rows)
            layout = _again(rig, rows[:8], writes=False)
            rig.run(0, rig.inputs(0, layout.num_tokens), rig.backend.plan(layout))
            assert not (wrong := self._read(rig, rows)), f"a step whose slots are all -1 changed blocks {wrong} of {rig.num_blocks}"

    def test_padding_rows_affect_nothing(self) -> None:
        """Rows of one token, length 0, slot -1 and a table of block 0 may stand behind the decodes: all others are as without them."""
        for rig in self.rigs():
            first, second = rig.row(), rig.row()
            self.close(rig, [(first, 5), (second, 6)], "two prompts")
            self.close(rig, [(first, 1), (second, 4)], "a decode, two padding rows, a chunk", num_padding=2)
            self.close(rig, [(first, 1), (second, 1)], "decodes before three padding rows", num_padding=3)

    def test_padding_of_tables_affects_nothing(self) -> None:
        """Tables are padded with block 0, to any width: lengths say what counts."""
        for rig in self.rigs():
            first, second = rig.row(), rig.row()
            self.close(rig, [(first, 5), (second, 11)], "tables with three more columns of block 0", wider=3)
            self.close(rig, [(first, 1), (second, 1)], "decodes, tables with three more columns of block 0", wider=3)

    def test_lengths_on_the_host_may_be_upper_bounds(self) -> None:
        """What counts is the device's seq_lens; host_seq_lens may be higher."""
        for rig in self.rigs():
            first, second = rig.row(), rig.row()
            self.close(rig, [(first, 5), (second, 6)], "host_seq_lens two above seq_lens", host_more=2, wider=1)
            self.close(rig, [(first, 1), (second, 1)], "decodes, host_seq_lens two above seq_lens", host_more=2, wider=1)

    def test_a_run_may_be_repeated(self) -> None:
        """run with equal arguments gives equal results, and an earlier result keeps its values."""
        for rig in self.rigs(self.spec(), self.spec()):
            rows = [(rig.row(), 1), (rig.row(), 6)]
            layout = rig.layout(rows)
            plan, kept = rig.backend.plan(layout), []
            for layer in (0, 1):
                inputs = rig.inputs(layer, layout.num_tokens)
                first = rig.run(layer, inputs, plan).out
                kept.append((first, first.clone()))
                assert torch.equal(rig.run(layer, inputs, plan).out, first), f"layer {layer}: a second run with equal arguments gives something else"
            assert all(torch.equal(out, before) for out, before in kept), "a later run changed the result of an earlier one"

    def test_arguments_are_left_alone(self) -> None:
        """Queries, keys, values, sinks and the layout's tensors belong to the caller."""
        for rig in self.rigs(self.spec(sinks="sinks" in self.features)):
            layout = rig.layout([(rig.row(), 1), (rig.row(), 6)])
            inputs = rig.inputs(0, layout.num_tokens)
            given = [*_tensors(layout), *(t for t in (inputs.query, inputs.key, inputs.value, inputs.sinks) if t is not None)]
            before = [tensor.clone() for tensor in given]
            rig.run(0, inputs, rig.backend.plan(layout))
            assert all(torch.equal(old, new) for old, new in zip(before, given, strict=True)), "plan or run changed a tensor that it was given"

    def test_copies_are_made_in_program_order(self) -> None:
        """Whole blocks, all layers, device and host: each copy sees what those before it wrote."""
        for rig in self.rigs(self.spec(), self.spec(num_kv_heads=1)):
            choose = random.Random(rig.block_size)
            for _ in range(4):
                _free(rig)
                self._copy(rig, [rig.row(1) for _ in range(5)], choose)

    def _copy(self, rig: AttentionRig, rows: list[Row], choose: random.Random) -> None:
        _fill(rig, rows)
        content = {BlockRef(row.table[0]): row for row in rows}
        copies = []
        for target in [BlockRef(at, True) for at in range(2)] + [choose.choice(_places(rows)) for _ in range(14)]:
            source = choose.choice(list(content))
            copies.append(Copy(source, target))
            content[target] = content[source]
        for place in [place for place in content if place.on_host]:  # what the host holds is seen where a table can list it
            target = BlockRef(rig.free.pop())
            copies.append(Copy(place, target))
            content[target] = content[place]
        rig.backend.copy_blocks(copies)
        read = [replace(row, table=[place.block]) for place, row in content.items() if not place.on_host]
        assert not (wrong := self._read(rig, read)), f"after {copies} blocks {wrong} do not hold what copies in this order leave there"

    def _read(self, rig: AttentionRig, rows: list[Row]) -> list[int]:
        """The blocks of rows of one whole block each that do not hold, in every layer, what their row says. Writes nothing."""
        wrong: set[int] = set()
        for at in range(0, len(rows), 8):
            some = rows[at : at + 8]
            layout = _again(rig, some, writes=False)
            plan = rig.backend.plan(layout)
            for layer in range(len(rig.layers)):
                done = rig.run(layer, replace(rig.inputs(layer, layout.num_tokens), key=None, value=None), plan)
                for index, row in enumerate(some):
                    if rig.difference(layer, row, done, index * rig.block_size, rig.block_size) > self.allowed(rig):
                        wrong.add(row.table[0])
        return sorted(wrong)

    def test_rows_do_not_depend_on_each_other(self) -> None:
        """Rows in another order give the same results, and a neighbour with scores in the hundreds changes nothing."""
        for rig in self.rigs():
            calm, loud = [rig.row() for _ in range(2)], rig.row()
            self.close(rig, [(calm[0], 5), (calm[1], 9)], "two prompts")
            rig.step([(loud, 6)], size=20.0)
            layout = rig.layout([(calm[0], 1), (loud, 1), (calm[1], 1)])
            inputs = rig.inputs(0, 3)
            inputs.query[1] *= 20.0
            one = rig.run(0, inputs, rig.backend.plan(layout)).out
            order = [2, 0, 1]
            again = rig.layout([([calm[0], loud, calm[1]][at], 1) for at in order])
            assert inputs.key is not None
            assert inputs.value is not None
            turned = replace(inputs, query=inputs.query[order], key=inputs.key[order], value=inputs.value[order])
            other = rig.run(0, turned, rig.backend.plan(again)).out
            difference = float((other.double() - one[order].double()).abs().max().nan_to_num(nan=float("inf")))
            assert difference <= self.allowed(rig) * max(1.0, float(one.abs().max())), f"rows in another order give results that differ by {difference:.3g}"

    def test_large_scores_do_not_overflow(self) -> None:
        """Scores in the hundreds, where exp alone overflows, give what dense attention gives."""
        for rig in self.rigs():
            rows = [(rig.row(), 1), (rig.row(), 9)]
            self.close(rig, rows, "queries and keys about 12 times as large as usual", size=12.0, slack=20.0)

    def test_bytes_per_block_are_what_a_block_costs(self) -> None:
        """At least the keys and values of a block over all layers, at most twice that; layers without a cache of their own cost nothing."""
        layers = (self.spec(), self.spec(num_kv_heads=4))
        shared = (*layers, self.spec(kv_from_layer=0)) if "kv_sharing" in self.features else layers
        for dtype in self.dtypes:
            for block_size in self.block_sizes:
                context = replace(self.context(), dtype=dtype, kv_dtype=dtype, block_size=block_size)
                told = [self.build(self._with(some, context)).bytes_per_block(dtype) for some in (layers[:1], layers, shared)]
                itemsize = getattr(torch, dtype).itemsize
                per_layer = [spec.num_kv_heads * (spec.key_dim + spec.value_dim) * block_size * itemsize for spec in layers]
                for number, least in zip(told, (per_layer[0], sum(per_layer), sum(per_layer)), strict=True):
                    assert least <= number <= 2 * least, f"bytes_per_block({dtype!r}) is {number}; keys and values of {block_size} tokens take {least}"

    def test_the_engine_answers_the_same(self) -> None:
        """Where float64 is declared: a whole engine on it, with steps in flight, copies and a pool too small, answers each request as if it were alone."""
        if "float64" not in self.dtypes or self.context().device != "cpu":
            return
        stack = [found("free-list")]
        together = answers(stack, {}, num_blocks=14, together=True, attention=(self.candidate(), self.options))
        assert together == alone(), "the tokens of a request depend on the attention backend: it read what another row wrote, or what nobody did"


def _free(rig: AttentionRig) -> None:
    """All blocks are free again, whatever they hold."""
    rig.free = list(range(1, rig.num_blocks + 1))


def _poison(rig: AttentionRig) -> None:
    """Fills every block with NaN, through the contract; then they are free again."""
    while rig.free:
        rig.step([(rig.row(1), rig.block_size)], value=NAN)
    _free(rig)


def _fill(rig: AttentionRig, rows: list[Row]) -> None:
    """One whole block for each row."""
    for at in range(0, len(rows), 8):
        rig.step([(row, rig.block_size) for row in rows[at : at + 8]])


def _again(rig: AttentionRig, rows: list[Row], *, writes: bool) -> BatchLayout:
    """The layout of the same whole blocks once more."""
    before = [replace(row, length=0) for row in rows]
    return rig.layout([(row, rig.block_size) for row in before], writes=writes, grow=False)


def _places(rows: list[Row]) -> list[BlockRef]:
    return [BlockRef(row.table[0]) for row in rows] + [BlockRef(at, True) for at in range(NUM_HOST_BLOCKS)]


def _tensors(layout: BatchLayout) -> list[Tensor]:
    plain = [getattr(layout, field.name) for field in fields(layout)]
    return [value for value in plain if isinstance(value, Tensor)] + [t for group in layout.groups for t in (group.block_tables, group.slot_mapping)]
