"""One forward pass: copies, attention plan, model, logits for the rows that draw. Knows tensors; nothing of requests or queues."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from corekit.api import AttentionBackend, AttentionPlan, BatchLayout, Copy, GroupLayout, KvPlan, KvView, Model, ModelInputs, SupportsKvWrite

from .batch import Batch
from .faults import isolate
from .prompt_logprobs import PromptScorer, Scores
from .rows import Ints, Rows
from .stopwatch import Stopwatch


class Ran(NamedTuple):
    """What a forward pass gave."""

    batch: Batch
    """The rows that went through."""
    logits: Tensor | None
    """[sum of num_logits, vocabulary]; None: no row draws."""
    scores: list[Scores]
    """Of prompts, for the rows that ask."""
    faults: dict[int, str]
    """Row of the input -> what went wrong with it."""


class Runner:
    """The only one that touches the device before the sampler does; every row's result is independent of its neighbours."""

    def __init__(self, *, model: Model, attention: AttentionBackend, scorer: PromptScorer, device: str) -> None:
        self._model = model
        self._attention = attention
        self._scorer = scorer
        self._device = torch.device(device)
        self._block_size = 0
        self._kv_views: tuple[KvView | None, ...] | None = None
        self._part = ""

    def allocate_kv(self, plan: KvPlan) -> None:
        self._attention.allocate_kv(plan)
        self._block_size = plan.block_size
        self._kv_views = self._attention.kv_views if isinstance(self._attention, SupportsKvWrite) else None

    def copy(self, copies: tuple[Copy, ...]) -> Stopwatch | None:
        """Before anything else of the step, and how long it takes. None: nothing was copied."""
        if not copies:
            return None
        watch = Stopwatch(self._device)
        watch.start()
        self._attention.copy_blocks(copies)
        watch.stop()
        return watch

    def run(self, batch: Batch, rows: Rows) -> Ran:
        self._check_tables(batch, rows)
        done, faults = isolate(len(batch), lambda first, end: self._forward(batch.part(first, end), rows), lambda: self._part)
        kept = batch if not faults else batch.select(np.array([at for at in range(len(batch)) if at not in faults], np.int64))
        logits = [part for part, _ in done if part is not None]
        return Ran(
            batch=kept,
            logits=None if not logits else logits[0] if len(logits) == 1 else torch.cat(logits),
            scores=[scores for _, scores in done if scores is not None],
            faults={int(batch.row[at]): why for at, why in faults.items()},
        )

    def _check_tables(self, batch: Batch, rows: Rows) -> None:
        seq_lens, num_blocks = batch.start + batch.num_tokens, rows.columns.num_blocks[batch.place]
        missing = -(-seq_lens // self._block_size) - num_blocks
        if len(batch) and missing.max() > 0:
            at = int(missing.argmax())
            raise RuntimeError(
                f"row {batch.row[at]} computes up to position {seq_lens[at] - 1}, but its table of {num_blocks[at]} blocks of {self._block_size} ends before"
            )

    def _forward(self, batch: Batch, rows: Rows) -> tuple[Tensor | None, Scores | None]:
        counts = batch.num_tokens
        query_start_loc = np.concatenate([[0], counts.cumsum()])
        inputs, layout = self._pack(batch, rows, counts, query_start_loc)
        self._part = f"attention_backend {type(self._attention).__name__}.plan"
        plan = self._attention.plan(layout)
        attend = _Attention(self._attention, plan, self._kv_views, tuple(group.slot_mapping for group in layout.groups))
        try:
            hidden = self._model.forward(inputs, attend)
        except Exception:
            self._part = f"attention_backend {type(self._attention).__name__}.run" if attend.failed else f"model {type(self._model).__name__}.forward"
            raise
        try:
            scores = self._scorer.score(batch, rows, hidden, query_start_loc)
        except Exception:
            self._part = self._scorer.part
            raise
        return self._logits(batch, hidden, query_start_loc), scores

    def _logits(self, batch: Batch, hidden: Tensor, query_start_loc: Ints) -> Tensor | None:
        drawing, num_logits = np.flatnonzero(batch.num_samples), batch.num_logits
        if not len(drawing):
            return None
        self._part = f"model {type(self._model).__name__}.logits"
        if len(drawing) < len(hidden):
            last = query_start_loc[1:] - num_logits  # the last known token of each row
            (wanted,) = self._send(_ranges(last[drawing], num_logits[drawing]))
            hidden = hidden[wanted]
        return self._model.logits(hidden)

    def _pack(self, batch: Batch, rows: Rows, counts: Ints, query_start_loc: Ints) -> tuple[ModelInputs, BatchLayout]:
        size, place, total = self._block_size, batch.place, int(query_start_loc[-1])
        seq_lens = batch.start + counts
        num_decodes = int((counts == 1).sum())
        if total == len(batch):
            positions, owner = batch.start, place
        else:
            positions, owner = _ranges(batch.start, counts), np.repeat(place, counts)
        slots = rows.tables[owner, positions // size] * size + positions % size
        tables = rows.tables[place, : -(-int(seq_lens.max()) // size)]
        tokens = self._tokens(batch, rows, num_decodes, total)
        sent = self._send(tokens, positions, query_start_loc, seq_lens, tables, slots)
        layout = BatchLayout(
            num_rows=len(batch),
            num_tokens=total,
            num_decodes=num_decodes,
            query_start_loc=sent[2],
            seq_lens=sent[3],
            groups=(GroupLayout(sent[4], sent[5]),),
            host_query_start_loc=query_start_loc,
            host_seq_lens=seq_lens,
        )
        return ModelInputs(token_ids=sent[0], positions=sent[1]), layout

    def _tokens(self, batch: Batch, rows: Rows, num_decodes: int, total: int) -> Ints:
        """Ids to compute: those of one-token rows at once, then one row after the other."""
        tokens = np.empty(total, np.int64)
        singles = batch.place[:num_decodes]
        tokens[:num_decodes] = rows.columns.last_token[singles]
        for i in np.flatnonzero(batch.start[:num_decodes] + 1 != rows.columns.num_tokens[singles]).tolist():  # one-token chunks of a prompt
            tokens[i] = rows.tokens[int(singles[i])][int(batch.start[i])]
        at = num_decodes
        for i in range(num_decodes, len(batch)):
            start, count = int(batch.start[i]), int(batch.num_known[i])
            guesses = batch.guesses[i] if batch.guesses is not None else ()
            tokens[at : at + count] = rows.tokens[int(batch.place[i])][start : start + count]
            tokens[at + count : at + count + len(guesses)] = guesses
            at += count + len(guesses)
        return tokens

    def _send(self, *arrays: Ints) -> list[Tensor]:
        """Arrays on the device; one transfer for all of them."""
        if self._device.type == "cpu":
            return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in arrays])).to(self._device, non_blocking=True)
        ends = np.cumsum([array.size for array in arrays]).tolist()
        return [flat[end - array.size : end].view(array.shape) for end, array in zip(ends, arrays, strict=True)]


class _Attention:
    """What a model calls. `failed`: the backend has raised, so the fault is not the model's."""

    __slots__ = ("_plan", "_run", "failed", "kv_views", "slot_mappings")

    def __init__(self, attention: AttentionBackend, plan: AttentionPlan, kv_views: tuple[KvView | None, ...] | None, slots: tuple[Tensor, ...]) -> None:
        self._run, self._plan, self.failed = attention.run, plan, False
        self.kv_views, self.slot_mappings = kv_views, slots

    def __call__(self, layer: int, query: Tensor, key: Tensor | None, value: Tensor | None, *, sinks: Tensor | None = None) -> Tensor:
        try:
            return self._run(layer, query, key, value, self._plan, sinks=sinks)
        except Exception:
            self.failed = True
            raise


def _ranges(start: Ints, count: Ints) -> Ints:
    """start[0] .. start[0] + count[0] - 1, then start[1] .. and so on."""
    ends = count.cumsum()
    offsets: Ints = np.repeat(start - (ends - count), count)
    offsets += np.arange(int(ends[-1]))
    return offsets
