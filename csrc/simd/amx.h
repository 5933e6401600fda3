// Eight registers of sixteen rows of 64 bytes, and the product of two of them: Intel AMX where that is compiled in (level amx), and
// the same arithmetic on memory for every other level, so that what is written for tiles is tested on any processor.
// The emulation is for tests: no product chooses it by itself. Whether the processor has tiles, instruction_set.h knows.
#pragma once

#include <stddef.h>

#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

// The thread's tile registers while this lives: sixteen rows of 64 bytes each, zero at first. One at a time for each thread.
//
// Written in assembly: the intrinsics of GCC 12 do not say which memory they read, so that it drops stores of the configuration
// and may move stores to a tile's rows behind the load.
class AmxTiles {
public:
    __attribute__((always_inline)) AmxTiles() {
        struct alignas(64) {
            uint8_t palette, start_row, reserved[14];
            uint16_t row_bytes[16];
            uint8_t num_rows[16];
        } config = {};
        config.palette = 1;
        for (int tile = 0; tile < 8; tile++) {
            config.row_bytes[tile] = 64;
            config.num_rows[tile] = 16;
        }
        asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
    }
    __attribute__((always_inline)) ~AmxTiles() { asm volatile("tilerelease" : : : "memory"); }
    AmxTiles(const AmxTiles &) = delete;
    AmxTiles &operator=(const AmxTiles &) = delete;

    template <int tile> __attribute__((always_inline)) void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(tile)); }
    // Rows of 64 bytes, row_stride bytes apart.
    template <int tile> __attribute__((always_inline)) void load(const void *from, size_t row_stride) {
        asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_stride), "i"(tile) : "memory");
    }
    template <int tile> __attribute__((always_inline)) void store(void *to, size_t row_stride) {
        asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_stride), "i"(tile) : "memory");
    }
    // Floats: sum[m][n] += sum over k < 16, i < 2 of a[m][2 k + i] * b[k][2 n + i], a and b bfloat16.
    template <int sum, int a, int b> __attribute__((always_inline)) void add_bf16_product() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sum), "i"(a), "i"(b));
    }
};

#else

// As above, on memory. Order and rounding are those of Intel's manual (TDPBF16PS): even and odd k are summed apart from zero, each step
// rounded once; then both together, then to the sum. Denormal numbers are taken for zero.
class AmxTiles {
public:
    AmxTiles() { memset(tile_, 0, sizeof tile_); }
    AmxTiles(const AmxTiles &) = delete;
    AmxTiles &operator=(const AmxTiles &) = delete;

    template <int tile> void zero() { memset(tile_[tile], 0, sizeof tile_[tile]); }
    template <int tile> void load(const void *from, size_t row_stride) {
        for (int row = 0; row < 16; row++) memcpy(tile_[tile][row], static_cast<const uint8_t *>(from) + row * row_stride, 64);
    }
    template <int tile> void store(void *to, size_t row_stride) {
        for (int row = 0; row < 16; row++) memcpy(static_cast<uint8_t *>(to) + row * row_stride, tile_[tile][row], 64);
    }
    template <int sum, int a, int b> void add_bf16_product() {
        for (int m = 0; m < 16; m++) {
            float parts[2][16] = {}, total[16];
            for (int k = 0; k < 16; k++) {
                for (int n = 0; n < 16; n++) {
                    for (int i = 0; i < 2; i++) parts[i][n] = flushed(__builtin_fmaf(bf16(a, m, 2 * k + i), bf16(b, k, 2 * n + i), parts[i][n]));
                }
            }
            memcpy(total, tile_[sum][m], 64);
            for (int n = 0; n < 16; n++) total[n] = flushed(flushed(total[n]) + flushed(parts[0][n] + parts[1][n]));
            memcpy(tile_[sum][m], total, 64);
        }
    }

private:
    static float flushed(float x) { return __builtin_fabsf(x) < 1.17549435e-38f ? __builtin_copysignf(0.0f, x) : x; }
    float bf16(int tile, int row, int at) const {
        uint16_t bits;
        memcpy(&bits, tile_[tile][row] + 2 * at, 2);
        return flushed(bf16_to_float(bits));
    }

    uint8_t tile_[8][16][64];
};

#endif

} // namespace COREKIT_LEVEL
} // namespace corekit
