#include "linear/amx.h"

#include "linear/levels.h"
#include "simd/amx.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr int tile_width = 16;          // rows of a tile, and floats of a row of it
constexpr size_t tile_bytes = 1024;     // also a block of a panel as bfloat16
constexpr size_t prefetch_ahead = 1024; // of the weights that are read
// Up to so many rows the weights are expanded just before each product, in turns into two pairs of tiles; beyond, once for all rows.
constexpr int max_rows_in_turns = 32;
constexpr size_t turns_bytes = 4 * tile_bytes;

// One block of a panel as a tile: sixteen rows of the bfloat16 of two inputs for sixteen outputs each.
template <Format format> void expand(const uint8_t *block, uint8_t *to) {
    uint16_t *rows = reinterpret_cast<uint16_t *>(to);
    const uint16_t *factors = reinterpret_cast<const uint16_t *>(block + block_bytes(format) - 64);
    if (format == Format::nibble) {
        const F32x16 d = load_half(factors), m = load_half(factors + 16);
        for (int j = 0; j < 4; j++) {
            const Bytes64 x = load_bytes(block + 64 * j);
            store_bf16_pairs(rows + 32 * (2 * j), fma(nibble_of_lane<0>(x), d, m), fma(nibble_of_lane<2>(x), d, m));
            store_bf16_pairs(rows + 32 * (2 * j + 1), fma(nibble_of_lane<4>(x), d, m), fma(nibble_of_lane<6>(x), d, m));
            store_bf16_pairs(rows + 32 * (2 * j + 8), fma(nibble_of_lane<1>(x), d, m), fma(nibble_of_lane<3>(x), d, m));
            store_bf16_pairs(rows + 32 * (2 * j + 9), fma(nibble_of_lane<5>(x), d, m), fma(nibble_of_lane<7>(x), d, m));
        }
    } else if (format == Format::byte) {
        const F32x16 d = load_half(factors), m = load_half(factors + 16);
        for (int j = 0; j < 8; j++) {
            const Bytes64 x = load_bytes(block + 64 * j);
            store_bf16_pairs(rows + 32 * (2 * j), fma(byte_of_lane<0>(x), d, m), fma(byte_of_lane<1>(x), d, m));
            store_bf16_pairs(rows + 32 * (2 * j + 1), fma(byte_of_lane<2>(x), d, m), fma(byte_of_lane<3>(x), d, m));
        }
    } else { // a channel's whole numbers; its scales follow in the end
        const F32x16 middle = set1(128.0f);
        for (int j = 0; j < 8; j++) {
            const Bytes64 x = load_bytes(block + 64 * j);
            store_bf16_pairs(rows + 32 * (2 * j), sub(byte_of_lane<0>(x), middle), sub(byte_of_lane<1>(x), middle));
            store_bf16_pairs(rows + 32 * (2 * j + 1), sub(byte_of_lane<2>(x), middle), sub(byte_of_lane<3>(x), middle));
        }
    }
}

template <Format format> void prefetch_block(const uint8_t *block) {
    for (size_t at = 0; at < block_bytes(format); at += 64) prefetch(block + prefetch_ahead + at);
}

// Two panels: the same twice where an odd number ends.
struct Pair {
    const uint8_t *panels[2];
};

// Tiles that lie somewhere in order of blocks: bf16 panels are tiles, others were expanded before.
struct Ready {
    Pair pair;
    const uint8_t *tile(int which, int block) const { return pair.panels[which] + block * tile_bytes; }
    void prepare(int block, bool first_use) const {
        if (!first_use) return;
        for (int which = 0; which < 2; which++) prefetch_block<Format::bf16>(tile(which, block));
    }
};

// Tiles that are made when they are needed.
template <Format format> struct InTurns {
    Pair pair;
    uint8_t *room; // turns_bytes
    uint8_t *slot(int which, int block) const { return room + (2 * (block & 1) + which) * tile_bytes; }
    const uint8_t *tile(int which, int block) const { return slot(which, block); }
    void prepare(int block, bool) const {
        for (int which = 0; which < 2; which++) {
            const uint8_t *from = pair.panels[which] + block * block_bytes(format);
            prefetch_block<format>(from);
            expand<format>(from, slot(which, block));
        }
    }
};

// Sums of up to two tiles of rows with a pair of panels: sums[2 r + p] has tile r of rows and panel p.
template <class Source>
COREKIT_INLINE void multiply_chunk(AmxTiles &tiles, const Source &weights, bool first_use, int num_blocks, const uint8_t *rows, size_t row_bytes, bool two,
                                   float (*sums)[16][16]) {
    tiles.zero<0>();
    tiles.zero<1>();
    tiles.zero<2>();
    tiles.zero<3>();
    const uint8_t *lower = rows + tile_width * row_bytes;
    weights.prepare(0, first_use);
    for (int block = 0; block < num_blocks; block++) {
        if (block + 1 < num_blocks) weights.prepare(block + 1, first_use);
        tiles.load<6>(weights.tile(0, block), 64);
        tiles.load<7>(weights.tile(1, block), 64);
        tiles.load<4>(rows + block * 64, row_bytes);
        tiles.add_bf16_product<0, 4, 6>();
        tiles.add_bf16_product<1, 4, 7>();
        if (!two) continue;
        tiles.load<5>(lower + block * 64, row_bytes);
        tiles.add_bf16_product<2, 5, 6>();
        tiles.add_bf16_product<3, 5, 7>();
    }
    tiles.store<0>(sums[0], 64);
    tiles.store<1>(sums[1], 64);
    if (!two) return;
    tiles.store<2>(sums[2], 64);
    tiles.store<3>(sums[3], 64);
}

// Rows [first_row, end_row) with any panels.
struct Product {
    AmxTiles &tiles;
    const Matrix &matrix;
    const Activations &rows;
    const Output &output;
    int first_row, end_row;
    uint8_t *scratch;

    template <Format format> void multiply_panels(int first_panel, int end_panel) const {
        for (int panel = first_panel; panel < end_panel; panel += 2) {
            const bool has_second = panel + 1 < end_panel;
            const Pair pair = {{matrix.panel(panel), matrix.panel(panel + has_second)}};
            if (format == Format::bf16) multiply_pair(Ready{pair}, panel, has_second);
            else if (end_row - first_row <= max_rows_in_turns) multiply_pair(InTurns<format>{pair, scratch}, panel, has_second);
            else multiply_pair(Ready{expand_pair<format>(pair)}, panel, has_second);
        }
    }

private:
    template <Format format> Pair expand_pair(const Pair &pair) const {
        const int num_blocks = matrix.num_blocks();
        uint8_t *to = scratch;
        for (const uint8_t *from : pair.panels) {
            for (int block = 0; block < num_blocks; block++, from += block_bytes(format), to += tile_bytes) {
                prefetch_block<format>(from);
                expand<format>(from, to);
            }
        }
        return {{scratch, scratch + num_blocks * tile_bytes}};
    }

    template <class Source> void multiply_pair(const Source &weights, int panel, bool has_second) const {
        alignas(64) float sums[4][16][16];
        const size_t row_bytes = rows.num_inputs * sizeof(uint16_t);
        for (int row = first_row; row < end_row; row += 2 * tile_width) {
            const int count = end_row - row, upper = count < tile_width ? count : tile_width;
            const int lower = count - upper < tile_width ? count - upper : tile_width;
            const uint8_t *from = reinterpret_cast<const uint8_t *>(rows.halves) + row * row_bytes;
            multiply_chunk(tiles, weights, row == first_row, matrix.num_blocks(), from, row_bytes, lower > 0, sums);
            finish_pair(sums, upper, row, panel, has_second);
            if (lower > 0) finish_pair(sums + 2, lower, row + tile_width, panel, has_second);
        }
    }

    void finish_pair(float (*sums)[16][16], int num_rows, int row, int panel, bool has_second) const {
        if (matrix.format == Format::channel) {
            scale(sums[0], num_rows, panel);
            if (has_second) scale(sums[1], num_rows, panel + 1);
        }
        if (output.kind == Output::Kind::silu_mul) return finish(matrix, output, panel / 2, row, num_rows, sums[0][0], sums[1][0]);
        finish(matrix, output, panel, row, num_rows, sums[0][0], nullptr);
        if (has_second) finish(matrix, output, panel + 1, row, num_rows, sums[1][0], nullptr);
    }

    void scale(float (*sums)[16], int num_rows, int panel) const {
        const F32x16 scales = load(reinterpret_cast<const float *>(matrix.panel(panel) + matrix.num_blocks() * block_bytes(Format::channel)));
        for (int row = 0; row < num_rows; row++) store(sums[row], mul(load(sums[row]), scales));
    }
};

// Rows that stay in the second cache while all panels pass by: about a megabyte of them.
int rows_at_once(int num_inputs) {
    const int fitting = (1 << 20) / (2 * num_inputs) / 32 * 32;
    return fitting < 64 ? 64 : fitting;
}

} // namespace

size_t amx_scratch_bytes(const Matrix &matrix, int num_rows) {
    if (matrix.format == Format::bf16) return 0;
    const size_t expanded = num_rows > max_rows_in_turns ? 2 * tile_bytes * matrix.num_blocks() : 0;
    return expanded > turns_bytes ? expanded : turns_bytes;
}

void multiply_amx(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output, uint8_t *scratch) {
    AmxTiles tiles;
    const int at_once = rows_at_once(rows.num_inputs);
    for (int first = 0; first < num_rows; first += at_once) {
        const Product product = {tiles, matrix, rows, output, first, num_rows - first < at_once ? num_rows : first + at_once, scratch};
        if (matrix.format == Format::bf16) product.multiply_panels<Format::bf16>(first_panel, end_panel);
        else if (matrix.format == Format::nibble) product.multiply_panels<Format::nibble>(first_panel, end_panel);
        else if (matrix.format == Format::byte) product.multiply_panels<Format::byte>(first_panel, end_panel);
        else product.multiply_panels<Format::channel>(first_panel, end_panel);
    }
}

namespace {

Prepared wants_bf16(Format, int) { return Prepared::bf16; }
bool can_multiply_bf16(Format format, Prepared prepared) { return format != Format::f32 && prepared == Prepared::bf16; }

} // namespace

extern const LinearKernels amx_table = {&wants_bf16, &can_multiply_bf16, &prepare, &multiply_amx, &amx_scratch_bytes};

} // namespace COREKIT_LEVEL
} // namespace corekit
