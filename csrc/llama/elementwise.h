// What a decoder computes between products, one table of functions for each instruction set. Knows vectors, and no matrix.
#pragma once

#include <stdint.h>

#include "simd/instruction_set.h"

namespace corekit {

struct ElementwiseKernels {
    // to = from / sqrt(mean of squares + epsilon) * weight (Zhang and Sennrich 2019). In place is fine.
    void (*rms_norm)(const float *from, const float *weight, int count, float epsilon, float *to);
    // The halves (a, b) of a head become (a cos - b sin, b cos + a sin) (Su et al. 2021). turns: head_dim / 2 cosines, then as many sines.
    void (*rotate)(float *head, const float *turns, int head_dim);
    // from: panels of 16 in turns gate and up, each half padded to whole panels; to = silu(gate) * up, `count` of them and padding.
    void (*silu_mul)(const float *from, int count, float *to);
    void (*widen)(const uint16_t *from, int count, float *to); // bfloat16 to float
    void (*narrow)(const float *from, int count, uint16_t *to); // float to bfloat16, to the nearest
};

const ElementwiseKernels &elementwise_kernels(InstructionSet set);

} // namespace corekit
