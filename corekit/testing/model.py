"""The laws of slot `model`: one forward pass, however it is cut into steps and whatever stands beside it. Knows no family of models."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from corekit.api import BuildContext, Model, Shard, SupportsDrafts

from .dense_rows import DenseRows, Piece
from .kit import Kit
from .memory_weights import MemoryWeights
from .spec_faults import spec_faults
from .view_rows import PAIRS_OF_DIMS, PAIRS_OF_TOKENS, PLAIN, ViewRows

PROMPT_LENGTHS = (11, 1, 17, 6)
MAX_TENSORS_TRIED = 5
UNEXPECTED = "model.layers.0.a_tensor_of_another_model.weight"


class ModelKit(Kit):
    """Subclass it, set `provider`, and `source` or `options`; inherit every law.

    A tiny model is enough, and a random one is best: two layers, windows of a few positions if it has any, weights so large
    that what changes an answer shows beyond `tolerance`.
    """

    slot: ClassVar[str] = "model"
    source: ClassVar[MemoryWeights] = MemoryWeights()
    """Configuration and tensors; without weights if the model has none."""
    tolerance: ClassVar[float] = 1e-4
    """How much equal logits may differ, as a part of the largest; 0 for exact models."""
    reads_context: ClassVar[bool] = True
    """False for a model whose answer to a token does not depend on the tokens before it."""
    reads_positions: ClassVar[bool] = True
    """False for a model that knows the order of its tokens, and not how far apart they stand."""
    optional_tensors: ClassVar[frozenset[str]] = frozenset()
    """Names that `load` does without."""

    def context(self) -> BuildContext:
        return BuildContext(source=self.source, max_model_len=64)

    def loaded(self) -> Model:
        """A fresh model with its weights."""
        model: Model = self.build()
        try:
            model.load(self.source, Shard())
        except ValueError as error:
            error.add_note("It was given the kit's `source`: set it to a MemoryWeights with every tensor that the model reads, and no other.")
            raise
        return model

    def rows(self) -> DenseRows:
        return DenseRows(self.loaded())

    def test_the_spec_is_known_without_weights(self) -> None:
        """Building reads no tensor; the spec is sound, and the same each time and after `load`."""
        model: Model = self.build(replace(self.context(), source=replace(self.source, sealed=True)))
        spec = model.spec
        faults = spec_faults(spec)
        assert not faults, f"the spec is not sound: {'; '.join(faults)}"
        assert self.loaded().spec == spec, "the spec after `load`, or of a second build, differs from the first"

    def test_hidden_states_and_logits_have_their_shapes(self) -> None:
        """forward gives [tokens, hidden_size], logits [rows, vocab_size], both floating and finite."""
        rows = self.rows()
        spec, prompt = rows.model.spec, self._prompts(rows)[0]
        hidden = rows.hidden(Piece(0, prompt))
        assert hidden.shape == (len(prompt), spec.hidden_size), (
            f"{len(prompt)} tokens gave hidden states {tuple(hidden.shape)}, hidden_size is {spec.hidden_size}"
        )
        logits = rows.model.logits(hidden[-2:])
        assert logits.shape == (2, spec.vocab_size), f"2 hidden rows gave logits {tuple(logits.shape)}, vocab_size is {spec.vocab_size}"
        assert logits.is_floating_point(), f"logits are {logits.dtype}"
        assert logits.isfinite().all(), "logits are not finite, and every position was written"

    def test_every_layer_attends_once_as_the_spec_says(self) -> None:
        """One call of `attend` for each layer of a forward pass, with the heads and widths of its LayerSpec, in the model's dtype."""
        rows = self.rows()
        spec, prompts = rows.model.spec, self._prompts(rows)
        rows.step(Piece(0, prompts[0]), Piece(1, prompts[1]))
        called = [call.layer for call in rows.calls]
        assert sorted(called) == list(range(len(spec.layers))), f"layers {called} attended; each of 0 to {len(spec.layers) - 1} does so once"
        dtype = getattr(torch, spec.dtype or self.context().dtype)
        given = {(call.layer, tensor.dtype) for call in rows.calls for tensor in (call.query, call.key, call.value) if tensor is not None}
        assert {found for _, found in given} == {dtype}, f"(layer, dtype) of what was passed: {sorted(map(str, given))}; the model computes in {dtype}"

    def test_chunks_change_nothing(self) -> None:
        """A prompt in pieces, of one token and of several, gives the logits of the whole prompt."""
        whole = self.rows()
        prompts = self._prompts(whole)
        for row, prompt in enumerate(prompts):
            (wanted,) = whole.step(Piece(row, prompt))
            for size in (1, 4):
                rows = DenseRows(whole.model)
                found = torch.cat([rows.step(Piece(0, prompt[at : at + size]))[0] for at in range(0, len(prompt), size)])
                self._equal(found, wanted, f"{len(prompt)} tokens in pieces of {size}, and at once")

    def test_neighbours_change_nothing(self) -> None:
        """A row's logits do not depend on the rows beside it: prompts of other lengths, and next tokens beside prompts."""
        alone, together = self.rows(), self.rows()
        prompts = self._prompts(alone)
        ready = [together.step(Piece(row, prompts[row]))[0] for row in (0, 1)]
        wanted = [alone.step(Piece(row, prompt))[0] for row, prompt in enumerate(prompts)]
        next_wanted = [alone.step(Piece(row, [3 % together.model.spec.vocab_size]))[0] for row in (0, 1)]
        mixed = together.step(
            Piece(0, [3 % together.model.spec.vocab_size]), Piece(1, [3 % together.model.spec.vocab_size]), Piece(2, prompts[2]), Piece(3, prompts[3])
        )
        for name, found, right in zip(("prompt 0", "prompt 1"), ready, wanted, strict=False):
            self._equal(found, right, f"{name}, alone both times")
        for name, found, right in zip(("next token 0", "next token 1", "prompt 2", "prompt 3"), mixed, [*next_wanted, *wanted[2:]], strict=True):
            self._equal(found, right, f"{name} beside neighbours, and alone")

    def test_the_order_of_rows_changes_nothing(self) -> None:
        """Rows may be packed in any order."""
        rows = self.rows()
        prompts = self._prompts(rows)
        wanted = rows.step(*(Piece(row, prompt) for row, prompt in enumerate(prompts)))
        for order in ((3, 2, 1, 0), (1, 3, 0, 2)):
            found = DenseRows(rows.model).step(*(Piece(row, prompts[row]) for row in order))
            for row, logits in zip(order, found, strict=True):
                self._equal(logits, wanted[row], f"row {row} packed in the order {order}, and in the order of their numbers")

    def test_what_came_before_matters(self) -> None:
        """Another token at the beginning, or the same ones in another order, changes the logits after it, and none before."""
        if not self.reads_context:
            return
        rows = self.rows()
        prompt = self._prompts(rows)[3]
        (wanted,) = rows.step(Piece(0, prompt))
        at = len(prompt) - 3
        another = [*prompt[:at], (prompt[at] + 1) % rows.model.spec.vocab_size, *prompt[at + 1 :]]
        swapped = [*prompt[:at], prompt[at + 1], prompt[at], *prompt[at + 2 :]]
        for name, changed in (("another token", another), ("two tokens swapped", swapped)):
            (found,) = DenseRows(rows.model).step(Piece(0, changed))
            self._equal(found[:at], wanted[:at], f"logits before {name}")
            self._differ(
                found[-1], wanted[-1], f"{name} at position {at} of {len(prompt)} left the last logits as they were: the model does not read its context"
            )

    def test_positions_are_read(self) -> None:
        """`positions` says where a token stands: the next token, put further away from the others, is answered in another way."""
        if not self.reads_positions:
            return
        rows = self.rows()
        prompt = self._prompts(rows)[3]
        rows.step(Piece(0, prompt[:-1]))
        near, far = (rows.model.logits(rows.hidden(Piece(0, prompt[-1:], shift))) for shift in (0, 3))
        self._differ(near, far, "a token at another position got the same logits: `positions` is not read. If that is meant, set reads_positions = False")

    def test_every_layer_reads_its_cache(self) -> None:
        """Values that were cached for earlier tokens, exchanged in one layer alone, change the logits of what follows."""
        if not self.reads_context:
            return
        model = self.loaded()
        writers = [index for index, layer in enumerate(model.spec.layers) if layer.kv_from_layer is None]
        for layer in (None, *writers):
            rows = DenseRows(model)
            prompt = self._prompts(rows)[2]
            rows.step(Piece(0, prompt[:-3]))
            if layer is None:
                wanted = model.logits(rows.hidden(Piece(0, prompt[-3:])))
                continue
            rows.roll_values(layer)
            found = model.logits(rows.hidden(Piece(0, prompt[-3:])))
            self._differ(found, wanted, f"layer {layer} gave the same with another cache: what `attend` returns for it is not used")

    def test_what_it_writes_itself_is_what_it_would_pass(self) -> None:
        """Offered the KV pools, a model that writes keys and values there, by their strides, answers as when it passes them."""
        passed = self.rows()
        prompts = self._prompts(passed)
        pieces = [Piece(row, prompt[:-2]) for row, prompt in enumerate(prompts) if len(prompt) > 2]
        rest = [Piece(piece.row, prompts[piece.row][-2:]) for piece in pieces]
        wanted = [torch.cat(parts) for parts in zip(passed.step(*pieces), passed.step(*rest), strict=True)]
        for keys, values in ((PLAIN, PLAIN), (PAIRS_OF_DIMS, PAIRS_OF_TOKENS), (PAIRS_OF_TOKENS, PAIRS_OF_DIMS)):
            rows = self._view_rows(passed.model, keys=keys, values=values)
            found = [torch.cat(parts) for parts in zip(rows.step(*pieces), rows.step(*rest), strict=True)]
            if not rows.num_written:
                return  # it passes them: nothing to compare
            for piece, logits, right in zip(pieces, found, wanted, strict=True):
                self._equal(logits, right, f"row {piece.row} with keys {keys} and values {values} that the model wrote, and with those that it passed")

    def test_a_token_without_a_slot_is_not_written(self) -> None:
        """Slot -1 writes nothing: the blocks of others stay as they were."""
        model = self.loaded()
        prompt = self._prompts(self.rows())[0]
        self._view_rows(model, withheld=True).hidden(Piece(0, prompt))  # raises if anything was written

    def _view_rows(self, model: Model, **how: Any) -> ViewRows:
        return ViewRows(model, getattr(torch, model.spec.dtype or self.context().dtype), **how)

    def test_logits_of_some_rows_are_rows_of_all_logits(self) -> None:
        """`logits` maps every hidden row alone: the engine asks for those it needs only."""
        rows = self.rows()
        hidden = rows.hidden(Piece(0, self._prompts(rows)[2]))
        whole = rows.model.logits(hidden)
        for picked in ([0], [5, 2], [len(hidden) - 1]):
            self._equal(rows.model.logits(hidden[picked]), whole[picked], f"logits of the hidden rows {picked}, and those rows of all logits")

    def test_forward_may_be_repeated(self) -> None:
        """The same inputs over the same cache give the same again."""
        rows = self.rows()
        prompt = self._prompts(rows)[0]
        rows.step(Piece(0, prompt[:4]))
        first, *again = (rows.model.logits(rows.hidden(Piece(0, prompt[4:]))) for _ in range(3))
        for logits in again:
            self._equal(logits, first, "a forward pass that was repeated, and the first")

    def test_nothing_is_left_of_earlier_requests(self) -> None:
        """A model that has answered other requests, longer ones too, answers like a fresh one."""
        fresh, used = self.rows(), self.rows()
        prompts = self._prompts(fresh)
        used.step(Piece(1, prompts[2]), Piece(2, prompts[0]))
        used.step(Piece(1, prompts[0]))
        self._equal(used.step(Piece(0, prompts[3]))[0], fresh.step(Piece(0, prompts[3]))[0], "after other requests, and fresh")

    def test_inputs_are_left_alone(self) -> None:
        """forward changes neither token ids nor positions: they are the engine's."""
        rows = self.rows()
        prompt = self._prompts(rows)[0]
        rows.hidden(Piece(0, prompt))
        assert rows.inputs is not None
        assert rows.inputs.token_ids.tolist() == list(prompt), "forward changed token_ids in place"
        assert rows.inputs.positions.tolist() == list(range(len(prompt))), "forward changed positions in place"

    def test_a_missing_tensor_is_named(self) -> None:
        """`load` raises ValueError with the name of a tensor that is not there; it never goes on with something else in its place."""
        needed = [name for name in self.source.tensor_names if name not in self.optional_tensors]
        for name in needed[:: max(1, len(needed) // MAX_TENSORS_TRIED)]:
            self._expect_named(self.source.without(name), name, "is missing")

    def test_an_unexpected_tensor_is_named(self) -> None:
        """`load` raises ValueError with the name of a tensor that it has no use for: it is likely another model's."""
        if self.source.weights is not None:
            self._expect_named(self.source.with_one_more(UNEXPECTED, torch.zeros(2, 2)), UNEXPECTED, "has no place in the model")

    def test_drafts_are_few_and_known_ids(self) -> None:
        """If it drafts: at most as many ids as asked for, all in the vocabulary, the same for the same tokens, which stay as they were."""
        model = self.loaded()
        if not isinstance(model, SupportsDrafts):
            return
        most, vocab_size = model.max_draft_tokens, model.spec.vocab_size
        assert type(most) is int, f"max_draft_tokens must be an integer, got {most!r}"
        assert most >= 0, f"max_draft_tokens must be 0 or more, got {most}"
        for prompt in self._prompts(DenseRows(model)):
            for count in range(1, most + 1):
                tokens = list(prompt)
                guesses = list(model.draft(tokens, count))
                assert len(guesses) <= count, f"{count} guesses were asked for and {len(guesses)} came"
                assert all(0 <= guess < vocab_size for guess in guesses), f"guesses {guesses} are not all ids below {vocab_size}"
                assert tokens == list(prompt), "draft changed the tokens that it was given"
                assert list(model.draft(tokens, count)) == guesses, "the same tokens were drafted for in two ways"

    def _prompts(self, rows: DenseRows) -> list[list[int]]:
        draw, spec = random.Random(3), rows.model.spec
        assert spec.context_length >= max(PROMPT_LENGTHS) + 4, (
            f"the laws need a context of {max(PROMPT_LENGTHS) + 4} tokens, the model's is {spec.context_length}"
        )
        return [[draw.randrange(spec.vocab_size) for _ in range(length)] for length in PROMPT_LENGTHS]

    def _expect_named(self, weights: MemoryWeights, name: str, fault: str) -> None:
        model: Model = self.build()
        raised: Exception | None = None
        try:
            model.load(weights, Shard())
        except ValueError as error:
            raised = error
        assert raised is not None, f"tensor {name!r} {fault}, and `load` did not raise ValueError"
        assert name in str(raised), f"tensor {name!r} {fault}, and the error does not name it: {raised}"

    def _equal(self, found: Tensor, wanted: Tensor, what: str) -> None:
        off, allowed = _distance(found, wanted), self.tolerance
        assert off <= allowed, f"{what}: logits differ by {off:.3g} of the largest, tolerance is {allowed:.3g}"

    def _differ(self, found: Tensor, wanted: Tensor, message: str) -> None:
        assert not _distance(found, wanted) <= self.tolerance, message


def _distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, as a part of the largest logit; not a number when one is."""
    if not wanted.numel():
        return 0.0
    return float((found.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp(min=1e-30))
