// Products by the tiles of AMX: for many rows, and weights of every format but f32; 4-bit and 8-bit ones are made bfloat16 on the way.
#pragma once

#include "linear/kernels.h"

namespace corekit {
namespace COREKIT_LEVEL {

// From how many rows tiles beat vectors. Weights that must be expanded first want more rows to share the work.
constexpr int min_amx_rows(Format format) { return format == Format::bf16 ? 8 : 16; }

// As LinearKernels::multiply, for rows prepared as bf16. A channel's weights are exact, those of nibble and byte rounded to the nearest
// bfloat16, ties away from zero. Emulated where this level has no tiles.
void multiply_amx(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output, uint8_t *scratch);
size_t amx_scratch_bytes(const Matrix &matrix, int num_rows);

// Tiles for any number of rows: for tests, on every level.
extern const LinearKernels amx_table;

} // namespace COREKIT_LEVEL
} // namespace corekit
