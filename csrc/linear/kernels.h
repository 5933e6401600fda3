// Products of packed weights with rows of activations, one table of functions for each instruction set.
#pragma once

#include "linear/matrix.h"
#include "simd/instruction_set.h"

namespace corekit {

// How rows are prepared for a product.
enum class Prepared : int {
    int8, // bytes in blocks of 32 inputs: x = scale q, |q| <= 127, q to the nearest
    bf16, // to the nearest
    f32,
};

// 32 inputs of a row as bytes. What a product needs of them lies together, so that one address serves for all.
struct Int8Block {
    int8_t q[block_depth];
    float scale;
    float scaled_sum; // scale times the sum of q
};

// Rows prepared for products; memory belongs to the caller. Inputs are padded with zeros to whole blocks.
struct Activations {
    Prepared prepared;
    int num_inputs;     // a multiple of block_depth
    Int8Block *blocks;  // int8: [rows, num_inputs / 32]
    float *scaled_sums; // int8: of all blocks of a row together, [rows]
    uint16_t *halves;   // bf16: [rows up to a multiple of 16, num_inputs]
    float *floats;      // f32: [rows, num_inputs]
};

// What becomes of a product.
struct Output {
    enum class Kind : int {
        store,    // to = product + bias
        add,      // to += product + bias
        silu_mul, // panels in turns gate and up: to = silu(gate) * up, half as many outputs; no bias
    };
    Kind kind;
    float *to;
    size_t stride;     // floats from row to row
    const float *bias; // [num_outputs] or null
};

struct LinearKernels {
    // In which form rows for this format and number of rows are wanted.
    Prepared (*wants)(Format format, int num_rows);
    // Whether rows prepared like this have products with this format: those that `wants` names, and bf16 in both bf16 and f32.
    bool (*can_multiply)(Format format, Prepared prepared);
    // Prepares one row of num_inputs floats (not padded) as row `at`.
    void (*prepare)(const float *from, int num_inputs, const Activations &to, int at);
    // Products of num_rows rows with panels [first_panel, end_panel), the range even at both ends for silu_mul. A row's result does not
    // depend on the number of rows, nor on how panels are shared, as long as the prepared form is the same. scratch: 64-byte aligned,
    // scratch_bytes(matrix, num_rows) of it for each thread.
    void (*multiply)(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output, uint8_t *scratch);
    size_t (*scratch_bytes)(const Matrix &matrix, int num_rows);
};

const LinearKernels &linear_kernels(InstructionSet set);

// Products by AMX tiles whatever the number of rows, and on sets that have none by an emulation: for tests alone.
const LinearKernels &amx_kernels(InstructionSet set);

// The panels of thread `thread` of num_threads: [first, end), even bounds if `pairs`.
COREKIT_EVERYWHERE inline void share_panels(int num_panels, bool pairs, int thread, int num_threads, int *first, int *end) {
    const int unit = pairs ? 2 : 1, count = (num_panels + unit - 1) / unit;
    *first = int(int64_t(count) * thread / num_threads) * unit;
    *end = int(int64_t(count) * (thread + 1) / num_threads) * unit;
    if (*end > num_panels) *end = num_panels;
}

} // namespace corekit
