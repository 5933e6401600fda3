// A partition's keys and values as floats in scratch, for a tile of many rows: each number is widened once, not once for each few rows.
#pragma once

#include "attention/partition.h"

namespace corekit {
namespace COREKIT_LEVEL {

constexpr int least_widened = 3 * max_rows<Halves>; // rows; below, to write floats and to read them again takes longer

// Reads from the partition's begin, also what a window hides: a plan has checked every block of its tables.
// What is widened lies as in a cache of floats whose blocks have sixteen positions.
COREKIT_INLINE Shape as_widened(Shape shape) {
    shape.cache = Number::f32;
    shape.block_size = 16;
    shape.key_words = shape.key_dim;
    return shape;
}

template <class Words, bool whole> static Places widen(const Shape &shape, const Places &places, int num_vectors, float *to) {
    constexpr int rows_of_half = half_length / Words::numbers;
    const size_t step = size_t(shape.block_size) * 4, lanes = size_t(shape.value_lanes);
    Places widened;
    for (int v = 0; v < num_vectors; v++) {
        const uint8_t *low = places.keys[2 * v], *high = places.keys[2 * v + 1];
        widened.keys[2 * v] = reinterpret_cast<uint8_t *>(to);
        for (int w = 0; w < shape.key_words; w++) {
            const Bytes64 words = whole ? load_bytes(low + w * step) : load_two(low + w * step, high + w * step);
            prefetch_far(value_line(places, v, size_t(w)));
            for (int i = 0; i < Words::numbers; i++, to += 16) store(to, Words::number(words, i));
        }
    }
    for (int half = 0; half < 2 * num_vectors; half++) {
        const uint8_t *from = places.values[half];
        widened.values[half] = reinterpret_cast<uint8_t *>(to);
        for (int i = 0; i < rows_of_half; i++, to += Words::numbers * lanes) {
            for (size_t lane = 0; lane < lanes; lane += 16, from += 64) {
                const Bytes64 words = load_bytes(from);
                prefetch_far(next_key_line<whole>(shape, places, half, lane / 16 * rows_of_half + size_t(i)));
                for (int j = 0; j < Words::numbers; j++) store(to + size_t(j) * lanes + lane, Words::number(words, j));
            }
        }
    }
    return widened;
}

} // namespace COREKIT_LEVEL
} // namespace corekit
