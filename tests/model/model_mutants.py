"""A small decoder that is right, models with one fault each, of the kind that an author would make, and the law that must catch it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from corekit.api import Attend, KvTensor, KvView, LayerSpec, Model, ModelInputs, ModelSpec, Provider, Shard, WeightSource
from corekit.testing.memory_weights import MemoryWeights

VOCAB, HIDDEN, HEADS, KV_HEADS, DIM, LAYERS = 53, 16, 2, 1, 8, 2


def weights() -> MemoryWeights:
    torch.manual_seed(2)
    shapes = {"embed": (VOCAB, HIDDEN), "head": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {f"{layer}.query": (HEADS * DIM, HIDDEN), f"{layer}.out": (HIDDEN, HEADS * DIM)}
        shapes |= {f"{layer}.key": (KV_HEADS * DIM, HIDDEN), f"{layer}.value": (KV_HEADS * DIM, HIDDEN)}
    return MemoryWeights(config={"vocab_size": VOCAB}, weights={name: torch.randn(shape) * 0.5 for name, shape in shapes.items()})


class Tiny:
    """Right: attention with rotary positions, twice, the second within a window. A position is turned by radians, one rate per pair."""

    max_draft_tokens = 2

    def __init__(self, source: WeightSource) -> None:
        layers = tuple(LayerSpec(num_heads=HEADS, num_kv_heads=KV_HEADS, key_dim=DIM, value_dim=DIM, scale=DIM**-0.5, window=window) for window in (None, 5))
        self.spec = ModelSpec(architecture="tiny", layers=layers, vocab_size=source.config["vocab_size"], context_length=64, hidden_size=HIDDEN)
        self._weights: dict[str, Tensor] = {}

    def load(self, weights: WeightSource, shard: Shard) -> None:
        self._weights = dict(weights.tensors())
        names = {"embed", "head", *(f"{layer}.{part}" for layer in range(LAYERS) for part in ("query", "key", "value", "out"))}
        if set(self._weights) != names:
            raise ValueError(f"missing: {sorted(names - set(self._weights))}; unexpected: {sorted(set(self._weights) - names)}")

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        hidden = self._weights["embed"][inputs.token_ids]
        for layer in range(LAYERS):
            hidden = hidden + self.attention(layer, self.norm(hidden), inputs.positions, attend)
        return self.norm(hidden)

    def attention(self, layer: int, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        query, key, value = (self.part(layer, part, hidden) for part in ("query", "key", "value"))
        return attend(layer, self.turn(query, positions), self.turn(key, positions), value).flatten(1) @ self._weights[f"{layer}.out"].T

    def part(self, layer: int, name: str, hidden: Tensor) -> Tensor:
        return (hidden @ self._weights[f"{layer}.{name}"].T).view(len(hidden), -1, DIM)

    def turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        angle = positions[:, None, None] * 10.0 ** -torch.arange(DIM // 2)
        one, two = vectors.chunk(2, -1)
        return torch.cat([one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()], -1)

    def norm(self, hidden: Tensor) -> Tensor:
        return hidden * hidden.square().mean(-1, keepdim=True).add(1e-6).rsqrt()

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._weights["head"].T

    def draft(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        return [*token_ids[-count:]] if count else []


class CountsTheTableInTheWeights(Tiny):
    """Asks the tensors for what the configuration says."""

    def __init__(self, source: WeightSource) -> None:
        super().__init__(source)
        self.spec = ModelSpec(
            architecture="tiny", layers=self.spec.layers, vocab_size=len(dict(source.tensors())["embed"]), context_length=64, hidden_size=HIDDEN
        )


class PadsItsLogits(Tiny):
    def logits(self, hidden: Tensor) -> Tensor:
        return torch.nn.functional.pad(super().logits(hidden), (0, 64 - VOCAB))


class RepeatsKvHeads(Tiny):
    """Hands over one KV head for each head, as attention without groups wants them."""

    def attention(self, layer: int, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        def repeating(layer: int, query: Tensor, key: Any, value: Any, *, sinks: Tensor | None = None) -> Tensor:
            return attend(layer, query, key.repeat_interleave(HEADS, 1), value.repeat_interleave(HEADS, 1), sinks=sinks)

        return super().attention(layer, hidden, positions, repeating)


class CountsPositionsInTheStep(Tiny):
    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        return super().forward(ModelInputs(token_ids=inputs.token_ids, positions=inputs.positions - inputs.positions.min()), attend)


class NormalisesOverTheStep(Tiny):
    def norm(self, hidden: Tensor) -> Tensor:
        return hidden * hidden.square().mean().add(1e-6).rsqrt()


class MixesInTheTokenPackedBefore(Tiny):
    """Every sequence begins anew only at position 0 of the step."""

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        hidden = super().forward(inputs, attend)
        before = torch.cat([torch.zeros(1, HIDDEN), hidden[:-1]])
        return hidden + 0.3 * before


class LooksAtNothing(Tiny):
    def attention(self, layer: int, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        return 0 * super().attention(layer, hidden, positions, attend)


class TurnsNothing(Tiny):
    def turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        return vectors


class SkipsALayer(Tiny):
    """Attends in every layer, and forgets to add what the second gave."""

    def attention(self, layer: int, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        found = super().attention(layer, hidden, positions, attend)
        return found if layer == 0 else torch.zeros_like(found)


class CentresItsLogits(Tiny):
    def logits(self, hidden: Tensor) -> Tensor:
        logits = super().logits(hidden)
        return logits - logits.mean(0)


class DropsOut(Tiny):
    """Left in training mode."""

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        return torch.nn.functional.dropout(super().forward(inputs, attend), 0.1)


class StretchesWithTheLongest(Tiny):
    """Rotary positions that are scaled by the longest sequence seen so far, for good."""

    longest = 12

    def turn(self, vectors: Tensor, positions: Tensor) -> Tensor:
        self.longest = max(self.longest, int(positions.max()) + 1)
        return super().turn(vectors, positions * 12 / self.longest)


class CountsFromOne(Tiny):
    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        inputs.positions.add_(1)
        return super().forward(inputs, attend)


class FillsWhatIsMissing(Tiny):
    def load(self, weights: WeightSource, shard: Shard) -> None:
        full = {name: torch.zeros(HIDDEN, HIDDEN) for name in ("0.out", "1.out", "0.query", "1.query")}
        for part in ("key", "value"):
            full |= {f"{layer}.{part}": torch.zeros(DIM, HIDDEN) for layer in range(LAYERS)}
        found = {**full, "embed": torch.zeros(VOCAB, HIDDEN), "head": torch.zeros(VOCAB, HIDDEN), **dict(weights.tensors())}
        super().load(MemoryWeights(weights=found), shard)


class PicksWhatItKnows(Tiny):
    def load(self, weights: WeightSource, shard: Shard) -> None:
        known = {name: tensor for name, tensor in weights.tensors() if not name.startswith("model.")}
        super().load(MemoryWeights(weights=known), shard)


class GuessesOneMore(Tiny):
    def draft(self, token_ids: Sequence[int], count: int) -> Sequence[int]:
        return [*token_ids[-1:]] * (count + 1)


class WritesItsCache(Tiny):
    """Right: writes keys and values to the pools where it is offered some."""

    def forward(self, inputs: ModelInputs, attend: Attend) -> Tensor:
        self.views, self.slots = attend.kv_views, attend.slot_mappings
        return super().forward(inputs, attend)

    def attention(self, layer: int, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        def writing(layer: int, query: Tensor, key: Any, value: Any, *, sinks: Tensor | None = None) -> Tensor:
            view = self.views and self.views[layer]
            if not view:
                return attend(layer, query, key, value, sinks=sinks)
            for tensor, heads in ((view.key, key), (view.value, value)):
                self.write(view, tensor, heads, self.slots[0])
            return attend(layer, query, None, None, sinks=sinks)

        return super().attention(layer, hidden, positions, writing)

    def write(self, view: KvView, tensor: KvTensor, heads: Tensor, slots: Tensor) -> None:
        memory = torch.frombuffer((ctypes.c_char * (view.num_blocks * tensor.block_stride * 4)).from_address(tensor.address), dtype=torch.float32)
        for at, slot in enumerate(slots.tolist()):
            if slot >= 0:
                self.write_token(view, tensor, memory, heads[at], slot)

    def write_token(self, view: KvView, tensor: KvTensor, memory: Tensor, heads: Tensor, slot: int) -> None:
        block, token = divmod(slot, view.block_size)
        for head, values in enumerate(heads):
            for dim, value in enumerate(values):
                memory[self.place(tensor, block, head, token, dim)] = value

    def place(self, tensor: KvTensor, block: int, head: int, token: int, dim: int) -> int:
        of_token = token // tensor.token_group * tensor.token_stride + token % tensor.token_group
        return block * tensor.block_stride + head * tensor.head_stride + of_token + dim // tensor.dim_group * tensor.dim_stride + dim % tensor.dim_group


class OverlooksGroups(WritesItsCache):
    """Takes pairs that lie side by side for ordinary strides."""

    def place(self, tensor: KvTensor, block: int, head: int, token: int, dim: int) -> int:
        return super().place(replace(tensor, token_group=1, dim_group=1), block, head, token, dim)


class WritesEverything(WritesItsCache):
    """Counts slots from the end when there is none."""

    def write(self, view: KvView, tensor: KvTensor, heads: Tensor, slots: Tensor) -> None:
        super().write(view, tensor, heads, slots % (view.num_blocks * view.block_size))


def _provider(made: type[Tiny]) -> Provider[Model]:
    name = "".join("-" + letter.lower() if letter.isupper() else letter for letter in made.__name__).strip("-")

    def build(context: Any, options: None) -> Model:
        return made(context.source)

    return Provider(name=name, api=1, summary="a small decoder with random weights", build=build)


RIGHT = _provider(Tiny)
RIGHT_WRITER = _provider(WritesItsCache)
MUTANTS = [
    (_provider(made), law)
    for made, law in (
        (CountsTheTableInTheWeights, "test_the_spec_is_known_without_weights"),
        (PadsItsLogits, "test_hidden_states_and_logits_have_their_shapes"),
        (RepeatsKvHeads, "test_every_layer_attends_once_as_the_spec_says"),
        (CountsPositionsInTheStep, "test_chunks_change_nothing"),
        (NormalisesOverTheStep, "test_neighbours_change_nothing"),
        (MixesInTheTokenPackedBefore, "test_the_order_of_rows_changes_nothing"),
        (LooksAtNothing, "test_what_came_before_matters"),
        (TurnsNothing, "test_positions_are_read"),
        (SkipsALayer, "test_every_layer_reads_its_cache"),
        (OverlooksGroups, "test_what_it_writes_itself_is_what_it_would_pass"),
        (WritesEverything, "test_a_token_without_a_slot_is_not_written"),
        (CentresItsLogits, "test_logits_of_some_rows_are_rows_of_all_logits"),
        (DropsOut, "test_forward_may_be_repeated"),
        (StretchesWithTheLongest, "test_nothing_is_left_of_earlier_requests"),
        (CountsFromOne, "test_inputs_are_left_alone"),
        (FillsWhatIsMissing, "test_a_missing_tensor_is_named"),
        (PicksWhatItKnows, "test_an_unexpected_tensor_is_named"),
        (GuessesOneMore, "test_drafts_are_few_and_known_ids"),
    )
]
