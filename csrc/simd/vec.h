// Sixteen lanes of float or int, whatever the processor's own width: kernels are written once and compiled once per instruction set.
//
// COREKIT_LEVEL (portable, avx2, avx512, avx512_bf16, amx) names the namespace, so that no function compiled for one set is ever
// linked in place of another's. For the same reason a file that includes this one uses no template or inline function of the
// standard library: the linker keeps one copy of those, of any set.
#pragma once

#include <stdint.h>
#include <string.h>

#ifndef COREKIT_LEVEL
#error "COREKIT_LEVEL is not defined: kernels are compiled once for each instruction set, see csrc/CMakeLists.txt"
#endif

#if defined(__AVX512F__)
#include "simd/vec_avx512.h"
#elif defined(__AVX2__)
#include "simd/vec_avx2.h"
#else
#include "simd/vec_portable.h"
#endif

#define COREKIT_INLINE static inline __attribute__((always_inline))

namespace corekit {
namespace COREKIT_LEVEL {

COREKIT_INLINE float bf16_to_float(uint16_t bits) {
    const uint32_t wide = uint32_t(bits) << 16;
    float value;
    memcpy(&value, &wide, 4);
    return value;
}

// To the nearest, ties to even; NaN stays NaN.
COREKIT_INLINE uint16_t float_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// e to the x, relative error below 3e-7; 0 below -87.3 and infinity nowhere: x is cut at 88. Range reduction by powers of 2 and a
// polynomial of degree 6 on [-ln2/2, ln2/2] (Cody and Waite 1980).
COREKIT_INLINE F32x16 exp(F32x16 x) {
    const F32x16 clamped = min(max(x, set1(-87.3f)), set1(88.0f));
    const F32x16 power = round_nearest(mul(clamped, set1(1.44269504f)));
    F32x16 rest = fma(power, set1(-0.693359375f), clamped);
    rest = fma(power, set1(2.12194440e-4f), rest);
    F32x16 sum = set1(1.0f / 720);
    sum = fma(sum, rest, set1(1.0f / 120));
    sum = fma(sum, rest, set1(1.0f / 24));
    sum = fma(sum, rest, set1(1.0f / 6));
    sum = fma(sum, rest, set1(0.5f));
    sum = fma(sum, rest, set1(1.0f));
    sum = fma(sum, rest, set1(1.0f));
    return zero_below(scale_by_power_of_two(sum, power), x, -87.3f);
}

COREKIT_INLINE F32x16 tanh(F32x16 x) { // 1 - 2 / (e^2x + 1)
    const F32x16 e = exp(add(x, x));
    return sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f))));
}

// x * sigmoid(x) (Elfwing et al. 2018)
COREKIT_INLINE F32x16 silu(F32x16 x) { return div(x, add(set1(1.0f), exp(sub(zero(), x)))); }

} // namespace COREKIT_LEVEL
} // namespace corekit
