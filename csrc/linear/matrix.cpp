#include "linear/matrix.h"

#include <math.h>
#include <string.h>

#include "linear/stored.h"

namespace corekit {

namespace {

constexpr int blocks_at_once = 16; // of 16 rows in turns: the part of a panel that is being written stays in the nearest cache
constexpr int vector_bytes = 64;

struct Row {
    Stored type;
    const uint8_t *bytes; // null: an output of zero weights
};

// One output's column of a panel: where its 32-bit words, its half scales and so on lie.
struct Column {
    Format format;
    uint8_t *panel;
    int output; // within the panel

    uint8_t *block(int at) const { return panel + at * block_bytes(format); }
    void put_word(uint8_t *block, int vector, uint32_t word) const { memcpy(block + vector * vector_bytes + 4 * output, &word, 4); }
    void put_halves(uint8_t *block, uint16_t d, uint16_t m) const {
        uint8_t *halves = block + block_bytes(format) - vector_bytes + 2 * output;
        memcpy(halves, &d, 2);
        memcpy(halves + 2 * panel_width, &m, 2);
    }
};

uint32_t word_at(const uint8_t *from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return word;
}

uint16_t half_at(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
    return half;
}

bool is_finite(uint16_t half) { return (half >> 10 & 31) != 31; }

// -2^shift times a half, exactly. False: beyond the range of halves.
bool negative_multiple(uint16_t half, int shift, uint16_t *product) {
    const int exponent = half >> 10 & 31;
    const uint32_t fraction = half & 1023, sign = ~half & 0x8000u;
    if (exponent + shift >= 31 && exponent != 0) return false;
    uint32_t bits;
    if (exponent != 0) bits = uint32_t(exponent + shift) << 10 | fraction;
    else {
        bits = fraction << shift; // in units of 2^-24, as subnormal halves count
        int above = 0;
        while (bits >> above >= 2048) above++;
        bits = (bits >> above) + (uint32_t(above) << 10); // the leading bit, 1024, is the first step of the exponent
    }
    *product = uint16_t(sign | bits);
    return true;
}

// q4_0 and q4_1 have nibbles in the order that a panel's words have them: 32-bit words are copied.
bool pack_four_bits(const Row &row, const Column &column, int first, int end) {
    const bool has_minimum = row.type == Stored::q4_1;
    const size_t stored_bytes = stored_block_bytes(row.type);
    for (int at = first; at < end; at++) {
        const uint8_t *from = row.bytes + at * stored_bytes;
        uint8_t *to = column.block(at);
        const uint16_t d = half_at(from);
        uint16_t m = half_at(from + 2);
        if (has_minimum ? !is_finite(d) || !is_finite(m) : !negative_multiple(d, 3, &m)) return false;
        column.put_halves(to, d, m);
        const uint8_t *words = from + (has_minimum ? 4 : 2);
        for (int j = 0; j < 4; j++) {
            const uint32_t word = word_at(words + 4 * j);
            if (column.format == Format::nibble) column.put_word(to, j, word);
            else {
                column.put_word(to, j, word & 0x0F0F0F0F);
                column.put_word(to, 4 + j, word >> 4 & 0x0F0F0F0F);
            }
        }
    }
    return true;
}

bool pack_eight_bits(const Row &row, const Column &column, int first, int end) {
    for (int at = first; at < end; at++) {
        const uint8_t *from = row.bytes + at * stored_block_bytes(row.type);
        uint8_t *to = column.block(at);
        uint16_t m;
        if (!negative_multiple(half_at(from), 7, &m)) return false;
        column.put_halves(to, half_at(from), m);
        for (int j = 0; j < 8; j++) column.put_word(to, j, word_at(from + 2 + 4 * j) ^ 0x80808080); // q + 128
    }
    return true;
}

void pack_floats(const Row &row, const Column &column, int num_inputs, int first, int end) {
    for (int at = first; at < end; at++) {
        const int left = num_inputs - at * block_depth, count = left < block_depth ? left : block_depth;
        uint8_t *to = column.block(at);
        if (row.type == Stored::bf16 && column.format == Format::bf16 && count == block_depth) {
            for (int j = 0; j < 16; j++) column.put_word(to, j, word_at(row.bytes + at * size_t(vector_bytes) + 4 * j));
            continue;
        }
        float weights[block_depth];
        uint32_t words[block_depth];
        read_block(row.type, row.bytes, at, count, weights);
        if (column.format == Format::f32) {
            memcpy(words, weights, sizeof words);
            for (int k = 0; k < block_depth; k++) column.put_word(to, k, words[k]);
        } else {
            for (int j = 0; j < 16; j++) words[j] = float_to_bf16(weights[2 * j]) | uint32_t(float_to_bf16(weights[2 * j + 1])) << 16;
            for (int j = 0; j < 16; j++) column.put_word(to, j, words[j]);
        }
    }
}

// NaN if a weight is not finite.
float largest_magnitude(const Row &row, int num_inputs, int num_blocks) {
    float most[block_depth] = {}, poison[block_depth] = {}; // a lane for each place in a block, so that loops become vectors
    for (int at = 0; at < num_blocks; at++) {
        float weights[block_depth];
        const int left = num_inputs - at * block_depth;
        read_block(row.type, row.bytes, at, left < block_depth ? left : block_depth, weights);
        for (int k = 0; k < block_depth; k++) {
            most[k] = fabsf(weights[k]) > most[k] ? fabsf(weights[k]) : most[k];
            poison[k] += weights[k] * 0;
        }
    }
    for (int k = 1; k < block_depth; k++) {
        most[0] = most[k] > most[0] ? most[k] : most[0];
        poison[0] += poison[k];
    }
    return most[0] + poison[0];
}

void pack_channel(const Row &row, const Column &column, int num_inputs, float scale, int first, int end) {
    for (int at = first; at < end; at++) {
        float weights[block_depth];
        uint8_t q[block_depth];
        const int left = num_inputs - at * block_depth;
        read_block(row.type, row.bytes, at, left < block_depth ? left : block_depth, weights);
        for (int k = 0; k < block_depth; k++) {
            float ratio = scale > 0 ? weights[k] / scale : 0;
            ratio = ratio < 127 ? ratio : 127; // NaN too: its output has a scale of NaN
            ratio = ratio > -127 ? ratio : -127;
            q[k] = uint8_t(int(ratio + 128.5f)); // 1 to 255; halves go up, either neighbour being as near
        }
        for (int j = 0; j < 8; j++) column.put_word(column.block(at), j, word_at(q + 4 * j));
    }
}

void pack_zeros(const Column &column, int first, int end) {
    for (int at = first; at < end; at++) {
        uint8_t *to = column.block(at);
        const int num_words = int(block_bytes(column.format) / vector_bytes);
        const bool scaled = column.format == Format::nibble || column.format == Format::byte;
        for (int j = 0; j < num_words - scaled; j++) column.put_word(to, j, column.format == Format::channel ? 0x80808080 : 0);
        if (scaled) column.put_halves(to, 0, 0);
    }
}

bool pack_column(const Row &row, const Column &column, int num_inputs, float channel_scale, int first, int end) {
    if (row.bytes == nullptr) pack_zeros(column, first, end);
    else if (column.format == Format::channel) pack_channel(row, column, num_inputs, channel_scale, first, end);
    else if (column.format == Format::bf16 || column.format == Format::f32) pack_floats(row, column, num_inputs, first, end);
    else if (row.type == Stored::q8_0) return pack_eight_bits(row, column, first, end);
    else return pack_four_bits(row, column, first, end);
    return true;
}

// The rows of one panel.
void find_rows(const StoredRows *parts, int num_parts, bool interleaved, int panel, Row *rows) {
    for (int n = 0; n < panel_width; n++) {
        int part = 0, at = panel * panel_width + n;
        if (interleaved) {
            part = panel % num_parts;
            at = panel / num_parts * panel_width + n;
        } else {
            while (part < num_parts && at >= parts[part].num_rows) at -= parts[part++].num_rows;
        }
        const bool there = part < num_parts && at < parts[part].num_rows;
        rows[n] = there ? Row{parts[part].type, parts[part].rows + at * parts[part].row_bytes} : Row{Stored::f32, nullptr};
    }
}

} // namespace

bool can_pack(Stored from, Format to) {
    if (to == Format::nibble) return from == Stored::q4_0 || from == Stored::q4_1;
    if (to == Format::byte) return stored_in_blocks(from);
    return true;
}

bool pack_panels(const Matrix &matrix, uint8_t *panels, const StoredRows *parts, int num_parts, bool interleaved, int first_panel, int end_panel) {
    const int num_blocks = matrix.num_blocks();
    for (int at = first_panel; at < end_panel; at++) {
        Row rows[panel_width];
        float scales[panel_width] = {};
        uint8_t *panel = panels + at * matrix.panel_bytes();
        find_rows(parts, num_parts, interleaved, at, rows);
        if (matrix.format == Format::channel) {
            for (int n = 0; n < panel_width; n++)
                if (rows[n].bytes != nullptr) scales[n] = largest_magnitude(rows[n], matrix.num_inputs, num_blocks) / 127;
            memcpy(panel + num_blocks * block_bytes(matrix.format), scales, sizeof scales);
        }
        for (int first = 0; first < num_blocks; first += blocks_at_once) {
            const int end = first + blocks_at_once < num_blocks ? first + blocks_at_once : num_blocks;
            for (int n = 0; n < panel_width; n++)
                if (!pack_column(rows[n], {matrix.format, panel, n}, matrix.num_inputs, scales[n], first, end)) return false;
        }
    }
    return true;
}

void unpack_row(const Matrix &matrix, int output, float *to) {
    const uint8_t *panel = matrix.panel(output / panel_width);
    const int n = output % panel_width;
    float scale;
    if (matrix.format == Format::channel) memcpy(&scale, panel + matrix.num_blocks() * block_bytes(matrix.format) + 4 * n, 4);
    for (int input = 0; input < matrix.num_inputs; input++) {
        const uint8_t *block = panel + input / block_depth * block_bytes(matrix.format);
        const int k = input % block_depth;
        if (matrix.format == Format::f32) memcpy(to + input, block + (k * panel_width + n) * 4, 4);
        else if (matrix.format == Format::bf16) {
            const uint32_t wide = uint32_t(half_at(block + k / 2 * vector_bytes + 4 * n + k % 2 * 2)) << 16;
            memcpy(to + input, &wide, 4);
        } else if (matrix.format == Format::channel) {
            to[input] = scale * float(block[k / 4 * vector_bytes + 4 * n + k % 4] - 128);
        } else {
            const bool nibble = matrix.format == Format::nibble;
            const int place = nibble ? k % 16 : k;
            const uint8_t byte = block[place / 4 * vector_bytes + 4 * n + place % 4];
            const uint8_t *halves = block + block_bytes(matrix.format) - vector_bytes + 2 * n;
            const float q = float(!nibble ? byte : k < 16 ? byte & 15 : byte >> 4);
            to[input] = half_to_float(half_at(halves)) * q + half_to_float(half_at(halves + 2 * panel_width));
        }
    }
}

} // namespace corekit
