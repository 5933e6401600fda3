// What the files of one instruction set give each other.
#pragma once

#include "linear/kernels.h"

#ifndef COREKIT_LEVEL
#error "COREKIT_LEVEL is not defined: kernels are compiled once for each instruction set, see csrc/CMakeLists.txt"
#endif

namespace corekit {

constexpr int max_streams_log = 2, max_streams = 1 << max_streams_log; // panels that are read at the same time

// What a tile computes: the products of some rows with one panel of each stream.
struct TileWork {
    const uint8_t *panels[max_streams];
    int num_blocks;
    const Activations *rows;
    int first_row;
};

// products: [streams, rows of the tile, 16], aligned to 64 bytes.
using Tile = void (*)(const TileWork &work, float *products);

// Tiles of one format and prepared form, for 1 row to max_rows, and for 1, 2 and 4 streams as far as there are registers.
struct TileShapes {
    int max_rows;
    const Tile (*tiles)[max_streams_log + 1];

    // Null where there is none.
    COREKIT_EVERYWHERE Tile at(int num_rows, int streams_log) const { return tiles[num_rows - 1][streams_log]; }
};

#if defined(__AVX512BF16__) // products of integers are those of avx512
namespace avx512 {
TileShapes int8_tiles(Format format);
}
#endif

namespace COREKIT_LEVEL {

void prepare(const float *from, int num_inputs, const Activations &to, int at);

#if defined(__AVX512BF16__)
using avx512::int8_tiles;
#else
TileShapes int8_tiles(Format format); // nibble, byte, channel
#endif
TileShapes float_tiles(Format format, Prepared prepared); // bf16 with f32 and bf16, f32 with f32

void multiply_vectors(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output);

// What becomes of the products [rows, 16] of a panel, or of a gate's and an up's, for silu_mul. unit: which panel, or pair of panels.
void finish(const Matrix &matrix, const Output &output, int unit, int first_row, int num_rows, const float *products, const float *up_products);

extern const LinearKernels linear_table;

} // namespace COREKIT_LEVEL
} // namespace corekit
