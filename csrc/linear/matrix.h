// Weights of a linear layer as kernels read them: panels of 16 outputs, so that one vector holds one input of 16 outputs.
// Knows formats and how they are packed from what files have; no arithmetic on activations.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace corekit {

// How a block of a panel, 32 inputs of 16 outputs, lies in memory. n: output in the panel, k: input in the block.
enum class Format : int {
    // 4-bit q, unsigned, 320 bytes: byte 4 n + i of vector j < 4 has k = 4 j + i in its low nibble and k = 16 + 4 j + i in its high
    // one; then 16 half scales d and 16 half minima m. w = d q + m. GGUF's Q4_1 as it is, and Q4_0 with m = -8 d.
    nibble,
    // 8-bit q, unsigned, 576 bytes: byte 4 n + i of vector j < 8 has k = 4 j + i; then d and m as above. GGUF's Q8_0 with
    // q + 128 and m = -128 d.
    byte,
    // 8-bit q + 128 as above without scales, 512 bytes; behind a panel's last block 16 float scales s. w = s (q - 128), one scale
    // for each output over all its inputs.
    channel,
    // 1,024 bytes: vector j < 16 has at place 2 n + i the bfloat16 of k = 2 j + i.
    bf16,
    // 2,048 bytes: vector k has at place n the float of k.
    f32,
};

// Inlined always: no copy that was compiled for one instruction set may be linked for all.
#define COREKIT_EVERYWHERE __attribute__((always_inline))

constexpr int panel_width = 16;
constexpr int block_depth = 32;
COREKIT_EVERYWHERE constexpr size_t block_bytes(Format format) {
    return format == Format::nibble ? 320 : format == Format::byte ? 576 : format == Format::channel ? 512 : format == Format::bf16 ? 1024 : 2048;
}

// Outputs beyond num_outputs and inputs beyond num_inputs are zero weights.
struct Matrix {
    Format format;
    int num_outputs;
    int num_inputs;
    const uint8_t *panels; // aligned to 64 bytes, and readable for 4 KiB behind the last panel: kernels prefetch ahead

    COREKIT_EVERYWHERE int num_panels() const { return (num_outputs + panel_width - 1) / panel_width; }
    COREKIT_EVERYWHERE int num_blocks() const { return (num_inputs + block_depth - 1) / block_depth; }
    COREKIT_EVERYWHERE size_t panel_bytes() const { return num_blocks() * block_bytes(format) + (format == Format::channel ? panel_width * sizeof(float) : 0); }
    COREKIT_EVERYWHERE size_t num_bytes() const { return num_panels() * panel_bytes(); }
    COREKIT_EVERYWHERE const uint8_t *panel(int at) const { return panels + at * panel_bytes(); }
};

// What a file has: rows of num_inputs weights, row_bytes apart.
enum class Stored : int { q4_0, q4_1, q8_0, f32, f16, bf16 };

struct StoredRows {
    Stored type;
    const uint8_t *rows;
    size_t row_bytes;
    int num_rows;
};

// Which formats hold a stored type exactly: q4_0 and q4_1 in nibble and byte, q8_0 in byte, bf16 in bf16, and all in f32. Any may be
// packed as bf16 (rounded to the nearest) and channel (scale: largest magnitude / 127).
bool can_pack(Stored from, Format to);

// Packs panels [first_panel, end_panel) of a matrix whose outputs are the rows of `parts`, one part after the other, or, if
// interleaved, panels of two parts of equal size in turns: each part then takes whole panels, and num_outputs counts their zero
// weights. No checks: callers have made them. Threads may share a matrix. False: a block's scale is beyond what its minimum, a half,
// can follow (not finite, or 512 and more in q8_0, 8,192 and more in q4_0); no model has such weights.
bool pack_panels(const Matrix &matrix, uint8_t *panels, const StoredRows *parts, int num_parts, bool interleaved, int first_panel, int end_panel);

// The weights of one output as floats, num_inputs of them: exactly what the kernels multiply with.
void unpack_row(const Matrix &matrix, int output, float *to);

} // namespace corekit
