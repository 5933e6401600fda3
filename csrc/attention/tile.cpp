// A tile's queries against one partition: finds where the partition's keys and values lie and who sees which, and computes a few
// queries at a time. Compiled once per instruction set.
#include "attention/tile.h"

#include "attention/partition.h"
#include "attention/widen.h"

namespace corekit {
namespace COREKIT_LEVEL {

// Calls visit(half, block, position in the block) for each half of the stretch. One beyond its end stands where the last one does: what
// is loaded from there is masked.
template <class Visit> COREKIT_INLINE void each_half(const Shape &shape, const Stretch &stretch, Visit visit) {
    int at = stretch.begin / shape.block_size, offset = stretch.begin % shape.block_size;
    const uint8_t *block = stretch.cache + size_t(stretch.blocks[at]) * shape.block_bytes;
    for (int half = 0; half < num_halves; half++) {
        visit(half, block, offset);
        if (stretch.begin + (half + 1) * half_length >= stretch.end) continue;
        offset += half_length;
        if (offset == shape.block_size) {
            offset = 0;
            block = stretch.cache + size_t(stretch.blocks[++at]) * shape.block_bytes;
        }
    }
}

static void find_places(const Shape &shape, const Stretch &stretch, const Stretch &next, Places *places) {
    const size_t half_of_values = (shape.head_bytes - shape.values_offset) / size_t(shape.block_size / half_length);
    each_half(shape, stretch, [=](int half, const uint8_t *block, int offset) {
        places->keys[half] = block + size_t(offset) * 4;
        places->values[half] = block + shape.values_offset + size_t(offset / half_length) * half_of_values;
    });
    each_half(shape, next.end > next.begin ? next : stretch,
              [=](int half, const uint8_t *block, int offset) { places->next_keys[half] = block + size_t(offset) * 4; });
}

// False: none of the rows sees anything here.
static bool find_seen(const Shape &shape, const Tile &tile, int first_row, int rows, Seen *seen) {
    const int begin = tile.stretch.begin;
    seen->first_of_all = partition_length;
    seen->end_of_all = 0;
    for (int r = 0; r < rows; r++) {
        const int position = tile.first_position + (first_row + r) / shape.group;
        const int first = position < 0 ? 0 : first_seen(shape, position) - begin, end = position + 1 - begin;
        seen->first[r] = first < 0 ? 0 : first;
        seen->end[r] = end > partition_length ? partition_length : end;
        if (seen->end[r] <= seen->first[r]) {
            seen->first[r] = seen->end[r] = 0;
            continue;
        }
        if (seen->first[r] < seen->first_of_all) seen->first_of_all = seen->first[r];
        if (seen->end[r] > seen->end_of_all) seen->end_of_all = seen->end[r];
    }
    return seen->end_of_all > 0;
}

template <class Words, int rows, bool whole, bool ahead>
static void attend_some(const Shape &shape, const Places &places, const Seen &seen, int asked, const float *query, float *states, const Work &work) {
    if constexpr (rows > 0) {
        if (asked == rows) attend_rows<Words, rows, whole, ahead>(shape, places, seen, query, states, work);
        else attend_some<Words, rows - 1, whole, ahead>(shape, places, seen, asked, query, states, work);
    }
}

// A tile's rows, a few at a time: as many each time as can be, so that none is left to a last time of few.
template <class Words, bool whole, bool ahead>
static void attend_all(const Shape &shape, const Tile &tile, const Places &places, float *states, const Work &work) {
    constexpr int most = max_rows<Words>;
    const int num_rows = tile.num_queries * shape.group;
    for (int row = 0, rows; row < num_rows; row += rows) {
        const int times = (num_rows - row + most - 1) / most;
        rows = (num_rows - row + times - 1) / times;
        Seen seen;
        if (!find_seen(shape, tile, row, rows, &seen)) continue;
        const float *query = tile.queries + size_t(row) * shape.key_dim;
        float *to = states + row * state_floats(shape);
        if (row == 0 && ahead && most > 1) attend_some<Words, most, whole, (ahead && most > 1)>(shape, places, seen, rows, query, to, work);
        else attend_some<Words, most, whole, false>(shape, places, seen, rows, query, to, work);
    }
}

template <class Words, bool whole> static void attend_as(const Shape &shape, const Tile &tile, const Stretch &next, float *states, uint8_t *scratch) {
    if (tile.stretch.end <= tile.stretch.begin) return;
    Places places;
    find_places(shape, tile.stretch, next, &places);
    const Work work = {reinterpret_cast<float(*)[partition_length]>(scratch), scratch + scores_bytes()};
    if constexpr (Words::numbers > 1) {
        if (tile.num_queries * shape.group >= least_widened) {
            float *to = reinterpret_cast<float *>(scratch + scores_bytes() + edges_bytes(shape));
            const Places widened = widen<Words, whole>(shape, places, (tile.stretch.end - tile.stretch.begin + 15) / 16, to);
            return attend_all<Floats, true, false>(as_widened(shape), tile, widened, states, work);
        }
    }
    attend_all<Words, whole, true>(shape, tile, places, states, work);
}

void attend(const Shape &shape, const Tile &tile, const Stretch &next, float *states, uint8_t *scratch) {
    const bool whole = shape.block_size % 16 == 0;
    if (shape.cache == Number::bf16 && whole) attend_as<Halves, true>(shape, tile, next, states, scratch);
    else if (shape.cache == Number::bf16) attend_as<Halves, false>(shape, tile, next, states, scratch);
    else if (whole) attend_as<Floats, true>(shape, tile, next, states, scratch);
    else attend_as<Floats, false>(shape, tile, next, states, scratch);
}

} // namespace COREKIT_LEVEL
} // namespace corekit
