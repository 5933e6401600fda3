// Tiles of weights in blocks of integers with rows of int8. The dot of a block is an exact integer; sums over blocks are floats, added
// block after block in every shape.
#include "linear/tile_shapes.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr int num_vectors = 8; // of a block's unsigned bytes: vector j has inputs 4 j to 4 j + 3

struct Bytes {
    typedef I32x16 Dots;
    static constexpr size_t block_size = block_bytes(Format::byte);
    static constexpr bool block_scales = true, nibbles = false;
};
struct Nibbles {
    typedef NibbleDots Dots;
    static constexpr size_t block_size = block_bytes(Format::nibble);
    static constexpr bool block_scales = true, nibbles = true;
};
struct Channels {
    typedef I32x16 Dots;
    static constexpr size_t block_size = block_bytes(Format::channel);
    static constexpr bool block_scales = false, nibbles = false;
};

template <class Weights> COREKIT_INLINE Bytes64 load_weights(const uint8_t *block, int vector) {
    if constexpr (!Weights::nibbles) return load_bytes(block + 64 * vector);
    constexpr int half = num_vectors / 2;
    return vector < half ? low_nibbles(load_bytes(block + 64 * vector)) : high_nibbles(load_bytes(block + 64 * (vector - half)));
}

template <class Weights> COREKIT_INLINE typename Weights::Dots no_dots() {
    if constexpr (Weights::nibbles) return no_nibble_dots();
    else return fresh_zero_ints();
}

template <class Weights> COREKIT_INLINE typename Weights::Dots add_dot(typename Weights::Dots sum, Bytes64 weights, const int8_t *x) {
    int32_t four;
    memcpy(&four, x, 4);
    if constexpr (Weights::nibbles) return dot_u4s8(sum, weights, four);
    else return dot_u8s8(sum, weights, four);
}

template <class Weights> COREKIT_INLINE F32x16 finished(typename Weights::Dots dots) {
    if constexpr (Weights::nibbles) return to_float(to_ints(dots));
    else return to_float(dots);
}

// One block of each stream.
template <class Weights, int num_rows, int num_streams>
COREKIT_INLINE void add_block(const uint8_t *const *panels, const Int8Block *rows, int num_blocks, int block, F32x16 (*sums)[num_rows]) {
    const Int8Block *x[num_rows];
    COREKIT_UNROLL(16)
    for (int row = 0; row < num_rows; row++) x[row] = rows + row * size_t(num_blocks) + block;
    const uint8_t *from[num_streams];
    typename Weights::Dots dots[num_streams][num_rows];
    COREKIT_UNROLL(4)
    for (int stream = 0; stream < num_streams; stream++) {
        from[stream] = panels[stream] + block * Weights::block_size;
        COREKIT_UNROLL(9)
        for (size_t line = 0; line < Weights::block_size; line += 64) prefetch(from[stream] + prefetch_bytes + line);
        COREKIT_UNROLL(16)
        for (int row = 0; row < num_rows; row++) dots[stream][row] = no_dots<Weights>();
    }
    COREKIT_UNROLL(8)
    for (int vector = 0; vector < num_vectors; vector++) {
        Bytes64 weights[num_streams];
        COREKIT_UNROLL(4)
        for (int stream = 0; stream < num_streams; stream++) weights[stream] = in_register(load_weights<Weights>(from[stream], vector));
        COREKIT_UNROLL(16)
        for (int row = 0; row < num_rows; row++) {
            COREKIT_UNROLL(4)
            for (int stream = 0; stream < num_streams; stream++)
                dots[stream][row] = add_dot<Weights>(dots[stream][row], weights[stream], x[row]->q + 4 * vector);
        }
    }
    COREKIT_UNROLL(4)
    for (int stream = 0; stream < num_streams; stream++) {
        const uint16_t *halves = reinterpret_cast<const uint16_t *>(from[stream] + Weights::block_size - 64);
        F32x16 scale, minimum;
        if constexpr (Weights::block_scales) scale = load_half(halves), minimum = load_half(halves + panel_width);
        COREKIT_UNROLL(16)
        for (int row = 0; row < num_rows; row++) {
            F32x16 &sum = sums[stream][row];
            const F32x16 row_scale = set1(x[row]->scale), dot = finished<Weights>(dots[stream][row]);
            if constexpr (Weights::block_scales) sum = fma(dot, mul(scale, row_scale), fma(minimum, set1(x[row]->scaled_sum), sum));
            else sum = fma(dot, row_scale, sum);
        }
    }
}

template <class Weights> struct Int8 {
    template <int num_rows, int num_streams> struct Shape {
        static void tile(const TileWork &work, float *products) {
            const Int8Block *rows = work.rows->blocks + work.first_row * size_t(work.num_blocks);
            F32x16 sums[num_streams][num_rows]; // some of them in memory where dots take the registers
            COREKIT_UNROLL(32)
            for (int at = 0; at < num_streams * num_rows; at++) sums[at / num_rows][at % num_rows] = zero();
            for (int block = 0; block < work.num_blocks; block++)
                add_block<Weights, num_rows, num_streams>(work.panels, rows, work.num_blocks, block, sums);
            COREKIT_UNROLL(32)
            for (int at = 0; at < num_streams * num_rows; at++) store(products + at * panel_width, sums[at / num_rows][at % num_rows]);
            if constexpr (Weights::block_scales) return;
            for (int row = 0; row < num_rows; row++) { // the sum of s (q - 128) x
                const float excess = 128 * work.rows->scaled_sums[work.first_row + row];
                for (int stream = 0; stream < num_streams; stream++) {
                    float *at = products + (stream * num_rows + row) * panel_width;
                    const float *scales = reinterpret_cast<const float *>(work.panels[stream] + work.num_blocks * Weights::block_size);
                    store(at, mul(sub(load(at), set1(excess)), load(scales)));
                }
            }
        }
    };
    static constexpr TileTable<Shape, max_int8_rows, int8_streams> table{};
};

} // namespace

TileShapes int8_tiles(Format format) {
    const auto *tiles = format == Format::nibble ? Int8<Nibbles>::table.tiles : format == Format::byte ? Int8<Bytes>::table.tiles : Int8<Channels>::table.tiles;
    return {max_int8_rows, tiles};
}

} // namespace COREKIT_LEVEL
} // namespace corekit
