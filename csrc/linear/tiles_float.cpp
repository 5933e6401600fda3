// Tiles of float and bfloat16 weights. A sum takes one input after the other in every shape.
//
// Rows of floats are multiplied with bfloat16 weights that are widened on the way: on Intel's processors two fused multiply-adds take
// half the time of one dot of two bfloat16, on AMD's twice the time (see wants in table.cpp).
#include "linear/tile_shapes.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr int num_pairs = block_depth / 2;

// Each takes a pair of inputs in `steps` steps.
struct Floats {
    typedef float Element;
    typedef F32x16 Vector;
    static constexpr size_t block_size = block_bytes(Format::f32);
    static constexpr int steps = 2;
};
struct WidenedHalves {
    typedef float Element;
    typedef F32x16 Vector;
    static constexpr size_t block_size = block_bytes(Format::bf16);
    static constexpr int steps = 2;
};
struct Halves {
    typedef uint16_t Element;
    typedef Bytes64 Vector;
    static constexpr size_t block_size = block_bytes(Format::bf16);
    static constexpr int steps = 1;
};

COREKIT_INLINE F32x16 load_weights(Floats, const uint8_t *block, int pair, int step) {
    return load(reinterpret_cast<const float *>(block) + (2 * pair + step) * 16);
}
COREKIT_INLINE F32x16 load_weights(WidenedHalves, const uint8_t *block, int pair, int step) {
    return step == 0 ? load_even_bf16(block + 64 * pair) : load_odd_bf16(block + 64 * pair);
}
COREKIT_INLINE Bytes64 load_weights(Halves, const uint8_t *block, int pair, int) { return load_bytes(block + 64 * pair); }

COREKIT_INLINE const float *rows_of(Floats, const Activations &rows) { return rows.floats; }
COREKIT_INLINE const float *rows_of(WidenedHalves, const Activations &rows) { return rows.floats; }
COREKIT_INLINE const uint16_t *rows_of(Halves, const Activations &rows) { return rows.halves; }

COREKIT_INLINE F32x16 add_product(F32x16 sum, F32x16 weights, const float *x) { return fma(weights, set1(*x), sum); }
COREKIT_INLINE F32x16 add_product(F32x16 sum, Bytes64 weights, const uint16_t *x) {
    int32_t two;
    memcpy(&two, x, 4);
    return dot_bf16(sum, weights, two);
}

// Of a later block, as many lines as the pair has here: all lines of a block at once would keep waiting what is read now.
template <class Weights> COREKIT_INLINE void prefetch_pair(const uint8_t *block, int pair) {
    constexpr size_t pair_bytes = Weights::block_size / num_pairs;
    COREKIT_UNROLL(2)
    for (size_t line = 0; line < pair_bytes; line += 64) prefetch(block + prefetch_bytes + pair * pair_bytes + line);
}

template <class Weights> struct Float {
    template <int num_rows, int num_streams> struct Shape {
        static void tile(const TileWork &work, float *products) {
            const size_t stride = size_t(work.num_blocks) * block_depth;
            const typename Weights::Element *x = rows_of(Weights(), *work.rows) + work.first_row * stride;
            F32x16 sums[num_streams][num_rows];
            COREKIT_UNROLL(32)
            for (int at = 0; at < num_streams * num_rows; at++) sums[at / num_rows][at % num_rows] = zero();

            for (int block = 0; block < work.num_blocks; block++, x += block_depth) {
                const uint8_t *from[num_streams];
                COREKIT_UNROLL(4)
                for (int stream = 0; stream < num_streams; stream++) from[stream] = work.panels[stream] + block * Weights::block_size;
                COREKIT_UNROLL(1)
                for (int pair = 0; pair < num_pairs; pair++) {
                    COREKIT_UNROLL(4)
                    for (int stream = 0; stream < num_streams; stream++) prefetch_pair<Weights>(from[stream], pair);
                    COREKIT_UNROLL(2)
                    for (int step = 0; step < Weights::steps; step++) {
                        typename Weights::Vector weights[num_streams];
                        COREKIT_UNROLL(4)
                        for (int stream = 0; stream < num_streams; stream++) weights[stream] = load_weights(Weights(), from[stream], pair, step);
                        COREKIT_UNROLL(16)
                        for (int row = 0; row < num_rows; row++) {
                            COREKIT_UNROLL(4)
                            for (int stream = 0; stream < num_streams; stream++)
                                sums[stream][row] = add_product(sums[stream][row], weights[stream], x + row * stride + 2 * pair + step);
                        }
                    }
                }
            }

            COREKIT_UNROLL(32)
            for (int at = 0; at < num_streams * num_rows; at++) store(products + at * panel_width, sums[at / num_rows][at % num_rows]);
        }
    };
    static constexpr TileTable<Shape, max_float_rows, float_streams> table{};
};

} // namespace

TileShapes float_tiles(Format format, Prepared prepared) {
    const auto *tiles = format == Format::f32       ? Float<Floats>::table.tiles
                        : prepared == Prepared::f32 ? Float<WidenedHalves>::table.tiles
                                                    : Float<Halves>::table.tiles;
    return {max_float_rows, tiles};
}

} // namespace COREKIT_LEVEL
} // namespace corekit
