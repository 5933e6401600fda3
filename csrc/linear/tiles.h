// Products of many rows by tiles: weights of any packed format, 4-bit and 8-bit ones made bfloat16 on the way.
#pragma once

#include "linear/kernels.h"

namespace corekit {
namespace COREKIT_LEVEL {

// From how many rows tiles are quicker than vectors.
constexpr int min_tile_rows = 16;

// Of memory aligned to 64 bytes for each thread.
size_t tile_scratch_bytes(const Matrix &matrix, int num_rows);

// As LinearKernels::multiply, for rows prepared as bf16 and every format but f32. A channel's weights are exact, those of nibble and
// byte rounded to the nearest bfloat16. A row's result depends neither on the number of rows nor on the range of panels.
void multiply_tiles(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output, uint8_t *scratch);

} // namespace COREKIT_LEVEL
} // namespace corekit
