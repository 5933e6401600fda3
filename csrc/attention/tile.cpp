// A tile's queries against one partition: finds where the partition's keys and values lie and who sees which, and computes a few
// queries at a time. Compiled once per instruction set.
#include "attention/tile.h"

#include "attention/partition.h"

namespace corekit {
namespace COREKIT_LEVEL {

// A half beyond the row's last position stands where the last one does: it is loaded and masked. The same for what is prefetched.
template <class Words> static void find_places(const Shape &shape, const Tile &tile, int begin, int end, Places *places) {
    const size_t half_of_values = size_t(half_length / Words::numbers) * shape.value_lanes * 4;
    int block = begin / shape.block_size, offset = begin % shape.block_size;
    const uint8_t *keys = nullptr, *values = nullptr;
    for (int half = 0; half < num_halves + prefetch_halves; half++) {
        if (half == 0 || begin + half * half_length < end) {
            const uint8_t *at = tile.cache + size_t(tile.blocks[block]) * shape.block_bytes;
            keys = at + size_t(offset) * 4;
            values = at + shape.values_offset + size_t(offset / half_length) * half_of_values;
            offset += half_length;
            if (offset == shape.block_size) {
                offset = 0;
                block++;
            }
        }
        places->keys[half] = keys;
        places->values[half] = values;
    }
}

// False: none of the rows sees anything here.
static bool find_seen(const Shape &shape, const Tile &tile, int begin, int first_row, int rows, Seen *seen) {
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

// The place for tiles of AMX: sixteen rows of a tile at once, scores by TDPBF16PS from keys as they lie (rows of pairs of dims), and
// sums from values as they lie (rows of pairs of positions).
template <class Words> static void attend_as(const Shape &shape, const Tile &tile, int partition, float *states, uint8_t *scratch) {
    const int begin = partition * partition_length, end = tile.first_position + tile.num_queries;
    if (end <= begin) return;
    Places places;
    find_places<Words>(shape, tile, begin, end, &places);
    const size_t scores_bytes = sizeof(float) * partition_length * max_rows;
    const Work work = {reinterpret_cast<float(*)[partition_length]>(scratch), reinterpret_cast<uint32_t(*)[partition_length]>(scratch + scores_bytes),
                       scratch + 2 * scores_bytes};
    const int num_rows = tile.num_queries * shape.group;
    for (int row = 0; row < num_rows; row += max_rows) {
        const int rows = num_rows - row < max_rows ? num_rows - row : max_rows;
        Seen seen;
        if (!find_seen(shape, tile, begin, row, rows, &seen)) continue;
        const uint32_t *query = tile.words + size_t(row) * shape.key_words;
        float *to = states + row * state_floats(shape);
        if (rows == 1) attend_rows<Words, 1>(shape, places, seen, query, to, work);
        else if (rows == 2) attend_rows<Words, 2>(shape, places, seen, query, to, work);
        else if (rows == 3) attend_rows<Words, 3>(shape, places, seen, query, to, work);
#if defined(__AVX512F__)
        else attend_rows<Words, 4>(shape, places, seen, query, to, work);
#endif
    }
}

void attend(const Shape &shape, const Tile &tile, int partition, float *states, uint8_t *scratch) {
    if (shape.cache == Number::bf16) attend_as<Halves>(shape, tile, partition, states, scratch);
    else attend_as<Floats>(shape, tile, partition, states, scratch);
}

} // namespace COREKIT_LEVEL
} // namespace corekit
