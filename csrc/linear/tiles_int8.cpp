// Tiles of weights in blocks of integers with rows of int8. The dot of a block is an exact integer; sums over blocks are floats, added
// block after block in every shape.
#include "linear/tile_shapes.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr int num_vectors = 8; // of a block's unsigned bytes: vector j has inputs 4 j to 4 j + 3

struct Bytes {
    static constexpr size_t block_size = block_bytes(Format::byte);
    static constexpr bool block_scales = true, nibbles = false;
};
struct Nibbles {
    static constexpr size_t block_size = block_bytes(Format::nibble);
    static constexpr bool block_scales = true, nibbles = true;
};
struct Channels {
    static constexpr size_t block_size = block_bytes(Format::channel);
    static constexpr bool block_scales = false, nibbles = false;
};

template <class Weights> COREKIT_INLINE void load_weights(const uint8_t *block, Bytes64 *weights) {
    if constexpr (Weights::nibbles) {
#pragma GCC unroll 4
        for (int j = 0; j < num_vectors / 2; j++) {
            const Bytes64 both = load_bytes(block + 64 * j);
            weights[j] = low_nibbles(both);
            weights[num_vectors / 2 + j] = high_nibbles(both);
        }
    } else {
#pragma GCC unroll 8
        for (int j = 0; j < num_vectors; j++) weights[j] = load_bytes(block + 64 * j);
    }
}

template <class Weights> COREKIT_INLINE F32x16 block_dot(const Bytes64 *weights, const int8_t *x) {
    I32x16 sum = zero_ints();
#pragma GCC unroll 8
    for (int j = 0; j < num_vectors; j++) {
        int32_t four;
        memcpy(&four, x + 4 * j, 4);
        sum = Weights::nibbles ? dot_u4s8(sum, weights[j], four) : dot_u8s8(sum, weights[j], four);
    }
    return to_float(sum);
}

// The sum of a row, in one order.
COREKIT_INLINE float sum_of(const float *from, int count) {
    F32x16 sum = zero();
    for (; count >= 16; count -= 16, from += 16) sum = add(sum, load(from));
    return reduce_add(add(sum, load_first(from, count)));
}

template <class Weights> struct Int8 {
    template <int num_rows, int num_streams> struct Shape {
        static void tile(const TileWork &work, float *products) {
            const int num_blocks = work.num_blocks;
            const size_t stride = size_t(num_blocks) * block_depth;
            const int8_t *bytes = work.rows->bytes + work.first_row * stride;
            const float *scales = work.rows->scales + work.first_row * size_t(num_blocks);
            const float *scaled_sums = work.rows->scaled_sums + work.first_row * size_t(num_blocks);
            F32x16 sums[num_streams][num_rows];
#pragma GCC unroll 16
            for (int at = 0; at < num_streams * num_rows; at++) sums[at / num_rows][at % num_rows] = zero();

            for (int block = 0; block < num_blocks; block++) {
#pragma GCC unroll 4
                for (int stream = 0; stream < num_streams; stream++) {
                    const uint8_t *from = work.panels[stream] + block * Weights::block_size;
#pragma GCC unroll 9
                    for (size_t line = 0; line < Weights::block_size; line += 64) prefetch(from + prefetch_bytes + line);
                    Bytes64 weights[num_vectors];
                    load_weights<Weights>(from, weights);
                    F32x16 scale, minimum;
                    if constexpr (Weights::block_scales) {
                        const uint16_t *halves = reinterpret_cast<const uint16_t *>(from + Weights::block_size - 64);
                        scale = load_half(halves);
                        minimum = load_half(halves + panel_width);
                    }
#pragma GCC unroll 16
                    for (int row = 0; row < num_rows; row++) {
                        F32x16 &sum = sums[stream][row];
                        const F32x16 dot = block_dot<Weights>(weights, bytes + row * stride + block * block_depth);
                        const F32x16 row_scale = set1(scales[row * size_t(num_blocks) + block]);
                        if constexpr (Weights::block_scales) {
                            sum = fma(minimum, set1(scaled_sums[row * size_t(num_blocks) + block]), sum);
                            sum = fma(dot, mul(scale, row_scale), sum);
                        } else sum = fma(dot, row_scale, sum);
                    }
                }
            }

#pragma GCC unroll 4
            for (int stream = 0; stream < num_streams; stream++) {
#pragma GCC unroll 16
                for (int row = 0; row < num_rows; row++) {
                    F32x16 sum = sums[stream][row];
                    if constexpr (!Weights::block_scales) { // sum of s (q - 128) x
                        const float excess = 128 * sum_of(scaled_sums + row * size_t(num_blocks), num_blocks);
                        const float *channel_scales = reinterpret_cast<const float *>(work.panels[stream] + num_blocks * Weights::block_size);
                        sum = mul(sub(sum, set1(excess)), load(channel_scales));
                    }
                    store(products + (stream * num_rows + row) * panel_width, sum);
                }
            }
        }
    };
    static constexpr TileTable<Shape, max_int8_rows, int8_streams> table{};
};

} // namespace

TileShapes int8_tiles(Format format) {
    const auto *tiles = format == Format::nibble ? Int8<Nibbles>::table.tiles : format == Format::byte ? Int8<Bytes>::table.tiles : Int8<Channels>::table.tiles;
    return {max_int8_rows, tiles[0]};
}

} // namespace COREKIT_LEVEL
} // namespace corekit
