"""A second right sampler, plainly written, and broken ones: one fault each, of a kind that an author makes, and the law that must see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from corekit.api import Biases, Logprobs, Penalties, Provider, Sampled, SamplingBatch

NEVER = float("-inf")


def spread(x: Tensor) -> Tensor:
    """The finalizer of MurmurHash3 (Appleby 2011), after an odd step."""
    x = x * -7046029254386353131 + 1
    for factor in (-49064778989728563, -4265267296055464877):
        x = (x ^ ((x >> 33) & ((1 << 31) - 1))) * factor
    return x ^ ((x >> 33) & ((1 << 31) - 1))


class Right:
    """Whole rows in float64, everything sorted: slow, and right. Its numbers are not those of the built-in part."""

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Sampled:
        if batch.all_greedy:
            return Sampled(token_ids=self.all_greedy(logits, batch))
        rows = self.changed(logits, batch)
        drawn = self.pick(self.kept(self.weights(rows, batch), batch), self.numbers(batch))
        return Sampled(token_ids=torch.where(batch.temperature == 0, self.highest(rows, batch), drawn))

    def all_greedy(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return self.highest(self.changed(logits, batch), batch)

    def highest(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        return rows.argmax(-1)

    # -- what is asked to be changed

    def rows(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return logits.double()[batch.logits_row]

    def changed(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        rows = self.rows(logits, batch)
        if batch.biases is not None:
            self.bias(rows, batch.biases)
        if batch.penalties is not None:
            self.penalise(rows, batch.penalties)
        self.restrict(rows, batch)
        return rows

    def inside(self, rows: Tensor, entries: Biases | Penalties) -> Tensor:
        return (entries.token_id >= 0) & (entries.token_id < rows.shape[1])

    def bias(self, rows: Tensor, biases: Biases) -> None:
        mine = self.inside(rows, biases)
        rows[biases.sample[mine], biases.token_id[mine]] += biases.value[mine].double()

    def penalise(self, rows: Tensor, penalties: Penalties) -> None:
        mine = self.inside(rows, penalties)
        at = (penalties.sample[mine], penalties.token_id[mine])
        x, count = rows[at], penalties.num_output[mine]
        repetition, presence, frequency = (column.double()[at[0]] for column in (penalties.repetition, penalties.presence, penalties.frequency))
        rows[at] = self.penalised(x, count, repetition, presence, frequency)

    def penalised(self, x: Tensor, count: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
        return torch.where(x > 0, x / repetition, x * repetition) - presence * (count > 0) - frequency * count

    def restrict(self, rows: Tensor, batch: SamplingBatch) -> None:
        for sample, ids in batch.allowed:
            self.allow(rows[sample], [id for id in ids if 0 <= id < rows.shape[1]])
        for sample, ids in batch.banned:
            self.ban(rows[sample], [id for id in ids if 0 <= id < rows.shape[1]])

    def allow(self, row: Tensor, ids: list[int]) -> None:
        kept = row[ids]
        row[:] = NEVER
        row[ids] = kept

    def ban(self, row: Tensor, ids: list[int]) -> None:
        row[ids] = NEVER

    # -- what is drawn

    def weights(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        rows = rows - rows.amax(1, keepdim=True)
        return (rows / self.temperature(batch)[:, None]).exp().nan_to_num(nan=0.0)

    def temperature(self, batch: SamplingBatch) -> Tensor:
        return batch.temperature.double().clamp(min=1e-45)

    def kept(self, weights: Tensor, batch: SamplingBatch) -> Tensor:
        falling, order = weights.sort(dim=1, descending=True, stable=True)
        keep = self.keep(falling, batch)
        return torch.zeros_like(weights).scatter(1, order, falling * keep)

    def keep(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        keep = self.top_k(falling, batch) & self.min_p(falling, batch)
        return keep & self.top_p(falling * keep, batch)

    def top_k(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        most = torch.where(batch.top_k > 0, batch.top_k, falling.shape[1])
        return torch.arange(falling.shape[1]) < most[:, None]

    def min_p(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        return falling >= batch.min_p.double()[:, None] * falling[:, :1]

    def top_p(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        before = falling.cumsum(1) - falling
        need = batch.top_p.double()[:, None] * falling.cumsum(1)[:, -1:]
        return (before < need) | (batch.top_p == 1)[:, None]

    def pick(self, weights: Tensor, numbers: Tensor) -> Tensor:
        sums = weights.cumsum(1)
        ids = torch.searchsorted(sums, (numbers * sums[:, -1])[:, None], right=True)[:, 0]
        last = (weights > 0).int().cumsum(1).argmax(1)  # the last id with any weight: what rounding must not go beyond
        return torch.minimum(ids, last)

    def numbers(self, batch: SamplingBatch) -> Tensor:
        """float64 in [0, 1)."""
        state = spread(spread(spread(batch.seed) + batch.position) + batch.index)
        return ((state >> 11) & ((1 << 53) - 1)).double() * 2.0**-53

    # -- logprobs

    def logprobs(self, logits: Tensor, logits_row: Tensor, token_ids: Tensor, num_top: int) -> Logprobs:
        values = self.log_softmax(logits.double())[logits_row].float()
        top, top_ids = self.likeliest(values, num_top)
        return Logprobs(chosen=values.gather(1, token_ids[:, None])[:, 0], top_ids=top_ids, top=top)

    def log_softmax(self, logits: Tensor) -> Tensor:
        return logits.log_softmax(-1)

    def likeliest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        top, ids = values.sort(dim=1, descending=True, stable=True)
        return top[:, :count], ids[:, :count]


# -- rows


class OneRowForAll(Right):
    """Forgets `logits_row` when there are as many samples as rows."""

    def rows(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return logits.double().clone() if len(logits) == len(batch.logits_row) else super().rows(logits, batch)


class NumbersByPlace(Right):
    """The place in the batch makes draws of one row differ."""

    def numbers(self, batch: SamplingBatch) -> Tensor:
        return super().numbers(batch) * 0.999 + 0.001 * torch.arange(len(batch.seed)) / len(batch.seed)


class ChunksForgetTheirFirst(Right):
    """Large batches are drawn in parts; what is asked of single samples is looked up by their place in the part."""

    def sample(self, logits: Tensor, batch: SamplingBatch) -> Sampled:
        size = 1 << 18
        if len(batch.logits_row) * logits.shape[1] <= size or batch.biases is None:
            return super().sample(logits, batch)
        kept = batch.biases.sample < size // logits.shape[1]
        biases = Biases(sample=batch.biases.sample[kept], token_id=batch.biases.token_id[kept], value=batch.biases.value[kept])
        return super().sample(logits, replace(batch, biases=biases))


class BansInPlace(Right):
    """Greedy batches with a ban only: no copy is needed, or so it seems."""

    def all_greedy(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        self.restrict(logits, replace(batch, banned=tuple((int(batch.logits_row[at]), ids) for at, ids in batch.banned), allowed=()))
        return super().all_greedy(logits, batch)


class CountsOnWholeRows(Right):
    """Reads a row where it would lie if nothing lay between the rows."""

    def rows(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return super().rows(logits.as_strided(logits.shape, (logits.shape[1], 1)), batch)


class RaisesForNan(Right):
    """torch.multinomial would do the same."""

    def pick(self, weights: Tensor, numbers: Tensor) -> Tensor:
        if not (weights.sum(1) > 0).all():
            raise RuntimeError("probability tensor contains either inf, nan or element < 0")
        return super().pick(weights, numbers)


class LowestOfSingle(Right):
    """A lowest number that half precision does not hold."""

    def rows(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return super().rows(logits.masked_fill(logits.isnan(), -1e9), batch)


# -- numbers


class Generator(Right):
    """A generator with a state."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def numbers(self, batch: SamplingBatch) -> Tensor:
        return (super().numbers(batch) + torch.rand(1, generator=self.generator, dtype=torch.float64)) % 1


class OneIndex(Right):
    def numbers(self, batch: SamplingBatch) -> Tensor:
        return super().numbers(replace(batch, index=torch.zeros_like(batch.index)))


class AddsThemUp(Right):
    def numbers(self, batch: SamplingBatch) -> Tensor:
        zero = torch.zeros_like(batch.seed)
        return super().numbers(replace(batch, seed=batch.seed + batch.position + batch.index, position=zero, index=zero))


class LowBits(Right):
    """A linear congruential step: even over all, but neighbours follow each other."""

    def numbers(self, batch: SamplingBatch) -> Tensor:
        return (super().numbers(replace(batch, position=torch.zeros_like(batch.position))) + batch.position.double() * 0.6180339887498949) % 1


# -- temperature


class ZeroIsOne(Right):
    """Temperature 0 is made 1 where other temperatures are."""

    def highest(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        return (
            rows.argmax(-1)
            if batch.all_greedy
            else self.pick(self.weights(rows, replace(batch, temperature=torch.ones_like(batch.temperature))), self.numbers(batch))
        )


class DividesFirst(Right):
    def weights(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        scaled = (rows.float() / batch.temperature[:, None]).double()
        return (scaled - scaled.amax(1, keepdim=True)).exp().nan_to_num(nan=0.0)


class TemperatureSquared(Right):
    def temperature(self, batch: SamplingBatch) -> Tensor:
        return super().temperature(batch).clamp(min=1e-20).pow(2)


class CutsTheTail(Right):
    """Keeps what half precision can tell from nothing."""

    def weights(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        weights = super().weights(rows, batch)
        return weights * (weights >= 2**-10)


class FloorUnderAll(Right):
    """Adds a little so that no logarithm meets a zero."""

    def weights(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        return super().weights(rows, batch) + 1e-3


# -- filters


class OneTooMany(Right):
    def top_k(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        return super().top_k(falling, replace(batch, top_k=torch.where(batch.top_k > 1, batch.top_k + 1, batch.top_k)))


class StopsBefore(Right):
    """The id that reaches p is left out, unless it is the first."""

    def top_p(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        keep = falling.cumsum(1) <= batch.top_p.double()[:, None] * falling.sum(1, keepdim=True) + 1e-9
        keep[:, 0] = True
        return keep


class Absolute(Right):
    """min_p of everything, not of the likeliest."""

    def min_p(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        keep = falling >= batch.min_p.double()[:, None] * falling.sum(1, keepdim=True)
        keep[:, 0] = True
        return keep


class LooksAtTheFirst256(Right):
    def keep(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        filtered = (batch.top_k > 0) & (batch.top_k < falling.shape[1]) | (batch.top_p < 1) | (batch.min_p > 0)
        return super().keep(falling, batch) & ((torch.arange(falling.shape[1]) < 256) | ~filtered[:, None])


class TopPFirst(Right):
    def keep(self, falling: Tensor, batch: SamplingBatch) -> Tensor:
        return self.top_k(falling, batch) & self.min_p(falling, batch) & self.top_p(falling, batch)


class EvenAfterFilters(Right):
    """What is left is drawn evenly where top_k is asked for."""

    def kept(self, weights: Tensor, batch: SamplingBatch) -> Tensor:
        kept = super().kept(weights, batch)
        return torch.where((batch.top_k > 0)[:, None] & (kept > 0), (kept + kept.amax(1, keepdim=True)) / 2, kept)


# -- changed logits


class BiasReplaces(Right):
    def bias(self, rows: Tensor, biases: Biases) -> None:
        mine = self.inside(rows, biases)
        rows[biases.sample[mine], biases.token_id[mine]] = biases.value[mine].double()


class AlwaysDivides(Right):
    def penalised(self, x: Tensor, count: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
        return x / repetition - presence * (count > 0) - frequency * count


class PromptIsPresent(Right):
    def penalised(self, x: Tensor, count: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
        return super().penalised(x, count, repetition, torch.zeros_like(x), frequency) - presence


class FrequencyOnce(Right):
    def penalised(self, x: Tensor, count: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor) -> Tensor:
        return super().penalised(x, count, repetition, presence, torch.zeros_like(x)) - frequency * (count > 0)


class BiasLast(Right):
    def changed(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        rows = super().changed(logits, replace(batch, biases=None))
        if batch.biases is not None:
            self.bias(rows, batch.biases)
        return rows


class PenaltiesAfterTemperature(Right):
    """Scales the penalties with the temperature: nothing changes at 0 and 1."""

    def penalise(self, rows: Tensor, penalties: Penalties) -> None:
        super().penalise(rows, replace(penalties, presence=penalties.presence * self.scale, frequency=penalties.frequency * self.scale))

    def changed(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        self.scale = torch.where(batch.temperature > 0, batch.temperature, 1.0)
        return super().changed(logits, batch)


class BanIsAPenalty(Right):
    def ban(self, row: Tensor, ids: list[int]) -> None:
        row[ids] -= 50.0


class AllowedAreLifted(Right):
    def allow(self, row: Tensor, ids: list[int]) -> None:
        row[ids] += 50.0


class RestrictsAfterFilters(Right):
    """Filters see what nobody may draw."""

    def changed(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        self.batch = batch
        return super().changed(logits, batch if not batch.temperature.all() else replace(batch, banned=(), allowed=()))

    def kept(self, weights: Tensor, batch: SamplingBatch) -> Tensor:
        rows = super().kept(weights, batch).log()
        if batch.temperature.all():
            self.restrict(rows, self.batch)
        return rows.exp()


class ChangesTheRow(Right):
    """What one sample asks for holds for its row."""

    def rows(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        self.owner = batch.logits_row
        return super().rows(logits, batch)

    def bias(self, rows: Tensor, biases: Biases) -> None:
        for at, owner in enumerate(self.owner.tolist()):
            mine = (self.owner[biases.sample] == owner) & self.inside(rows, biases)
            rows[at, biases.token_id[mine]] += biases.value[mine].double()


class GreedyIsArgmax(Right):
    def all_greedy(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        return logits.argmax(-1)[batch.logits_row]


class CountsFromTheEnd(Right):
    """-1 is the last id."""

    def inside(self, rows: Tensor, entries: Biases | Penalties) -> Tensor:
        return (entries.token_id >= -rows.shape[1]) & (entries.token_id < rows.shape[1])


class CountsOnOrder(Right):
    """Entries of one sample follow each other, or so it seems."""

    def bias(self, rows: Tensor, biases: Biases) -> None:
        super().bias(rows, replace(biases, sample=biases.sample.sort().values))


class ClampsInPlace(Right):
    """No temperature is too small to divide by."""

    def weights(self, rows: Tensor, batch: SamplingBatch) -> Tensor:
        return super().weights(rows, replace(batch, temperature=batch.temperature.clamp_(min=1e-5)))


class NothingLeftIsAnError(Right):
    def restrict(self, rows: Tensor, batch: SamplingBatch) -> None:
        super().restrict(rows, batch)
        asked = [sample for sample, _ in (*batch.allowed, *batch.banned)]
        if asked and (rows[asked].amax(1) == NEVER).any():
            raise ValueError("a sample has nothing to draw")


# -- logprobs


class Bits(Right):
    def log_softmax(self, logits: Tensor) -> Tensor:
        return super().log_softmax(logits) / 0.6931471805599453


class ById(Right):
    def likeliest(self, values: Tensor, count: int) -> tuple[Tensor, Tensor]:
        _, ids = super().likeliest(values, count)
        ids = ids.sort(dim=1).values
        return values.gather(1, ids), ids


MUTANTS: Mapping[type[Right], str] = {
    OneRowForAll: "test_a_sample_draws_from_the_row_that_it_names",
    NumbersByPlace: "test_a_draw_knows_no_neighbour",
    ChunksForgetTheirFirst: "test_a_large_batch_draws_what_its_parts_draw",
    BansInPlace: "test_logits_stay_as_they_were",
    CountsOnWholeRows: "test_logits_may_be_a_view",
    RaisesForNan: "test_broken_rows_stay_alone",
    LowestOfSingle: "test_every_dtype_of_logits",
    Generator: "test_equal_arguments_draw_equal_ids",
    OneIndex: "test_seed_position_and_index_each_count",
    AddsThemUp: "test_streams_do_not_repeat_one_another",
    LowBits: "test_draws_are_even_along_every_axis",
    ZeroIsOne: "test_temperature_zero_takes_the_highest",
    DividesFirst: "test_tiny_temperatures_are_greedy",
    TemperatureSquared: "test_draws_follow_the_softmax",
    CutsTheTail: "test_unlikely_ids_are_drawn_as_often_as_they_should",
    FloorUnderAll: "test_impossible_ids_are_never_drawn",
    OneTooMany: "test_top_k_keeps_the_k_likeliest",
    StopsBefore: "test_top_p_keeps_the_shortest_that_reaches_it",
    Absolute: "test_min_p_is_a_share_of_the_likeliest",
    LooksAtTheFirst256: "test_filters_look_deep_into_large_vocabularies",
    TopPFirst: "test_filters_come_in_order",
    EvenAfterFilters: "test_filtered_draws_follow_what_is_left",
    BiasReplaces: "test_biases_are_added",
    AlwaysDivides: "test_repetition_divides_what_is_positive_and_multiplies_the_rest",
    PromptIsPresent: "test_presence_is_taken_once",
    FrequencyOnce: "test_frequency_is_taken_as_often_as_the_id_was_drawn",
    BiasLast: "test_biases_come_before_penalties",
    PenaltiesAfterTemperature: "test_changed_draws_follow_their_distribution",
    BanIsAPenalty: "test_banned_ids_are_never_drawn",
    AllowedAreLifted: "test_only_allowed_ids_are_drawn",
    RestrictsAfterFilters: "test_what_may_be_drawn_is_settled_before_the_filters",
    ChangesTheRow: "test_samples_of_one_row_have_their_own",
    GreedyIsArgmax: "test_all_greedy_changes_nothing",
    CountsFromTheEnd: "test_ids_outside_the_vocabulary_are_passed_over",
    CountsOnOrder: "test_entries_come_in_any_order",
    ClampsInPlace: "test_the_batch_stays_as_it_was",
    NothingLeftIsAnError: "test_a_sample_with_nothing_left_raises_nothing",
    Bits: "test_logprobs_are_of_the_logits_as_they_are",
    ById: "test_top_logprobs_come_likeliest_first",
}


def provider_of(part: type[Right]) -> Provider[Any]:
    return Provider(name="plain", api=1, summary="whole rows in float64, written for a test", build=lambda context, options: part())
