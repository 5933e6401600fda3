// Which shapes of tiles there are: sums must stay in the vector registers. Knows no format.
#pragma once

#include "linear/levels.h"
#include "simd/vec.h"

// Loops over the rows and streams of a tile are unrolled, so that their sums become registers. Where every access is checked
// that would only take minutes to compile.
#define COREKIT_PRAGMA(text) _Pragma(#text)
#if defined(__SANITIZE_ADDRESS__)
#define COREKIT_UNROLL(count) COREKIT_PRAGMA(GCC unroll 1)
#else
#define COREKIT_UNROLL(count) COREKIT_PRAGMA(GCC unroll count)
#endif

namespace corekit {
namespace COREKIT_LEVEL {

// Few rows wait for memory: several streams keep more of it on the way. More rows compute, and need the registers for sums.
#if defined(__AVX512F__) // 32 registers
constexpr int max_int8_rows = 12, max_float_rows = 14;
constexpr int int8_streams(int num_rows) { return num_rows <= 6 ? 4 : 2; }
constexpr int float_streams(int num_rows) { return num_rows <= 6 ? 4 : 2; }
#elif defined(__AVX2__) // 16 registers of half a vector
constexpr int max_int8_rows = 4, max_float_rows = 6;
constexpr int int8_streams(int num_rows) { return num_rows == 1 ? 4 : 1; }
constexpr int float_streams(int num_rows) { return num_rows == 1 ? 4 : num_rows <= 3 ? 2 : 1; }
#else
constexpr int max_int8_rows = 2, max_float_rows = 2;
constexpr int int8_streams(int) { return 1; }
constexpr int float_streams(int) { return 1; }
#endif

constexpr int prefetch_bytes = 1024; // ahead, within each stream

// Tiles of up to max_rows rows: `Shape<rows, streams>::tile` for 1 row to max_rows, and 1, 2 and 4 streams as far as streams(rows) goes.
template <template <int, int> class Shape, int max_rows, int (*streams)(int)> struct TileTable {
    Tile tiles[max_rows][max_streams_log + 1] = {};

    constexpr TileTable() { fill<1>(); }
    template <int rows> constexpr void fill() {
        if constexpr (rows <= max_rows) {
            tiles[rows - 1][0] = &Shape<rows, 1>::tile;
            if constexpr (streams(rows) >= 2) tiles[rows - 1][1] = &Shape<rows, 2>::tile;
            if constexpr (streams(rows) >= 4) tiles[rows - 1][2] = &Shape<rows, 4>::tile;
            fill<rows + 1>();
        }
    }
};

} // namespace COREKIT_LEVEL
} // namespace corekit
