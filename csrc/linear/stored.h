// Rows of weights as files have them, read as floats. Knows the layouts of GGUF's blocks; no panels.
#pragma once

#include <stdint.h>

#include "linear/matrix.h"

namespace corekit {

// Bytes of one block of 32 weights. f32, f16 and bf16 have no blocks; this is then what 32 weights take.
size_t stored_block_bytes(Stored type);
// Whether rows of this type have whole blocks only.
bool stored_in_blocks(Stored type);

float half_to_float(uint16_t half);
uint16_t float_to_bf16(float value); // to the nearest, ties to even; NaN stays NaN

// Weights [32 block, 32 block + count) of a row; to[count..31] = 0. Bit-equal to the file's definition: products and sums are those of
// single precision, and d q is exact in it.
void read_block(Stored type, const uint8_t *row, int block, int count, float *to);

} // namespace corekit
