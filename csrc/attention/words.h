// The two kinds of words of a cache, so that kernels are written once. Words become floats as they are read, once for all rows that
// use them: where many rows share them that is quicker than products of bfloat16 pairs by VDPBF16PS, and queries and weights stay floats.
#pragma once

#include "attention/kernels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

// Sixteen words, of which the last eight may lie elsewhere; and the upper and lower halves of words, as bfloat16, each a float.
#if defined(__AVX512F__)
COREKIT_INLINE Bytes64 load_two(const void *low, const void *high) {
    const __m256i *first = static_cast<const __m256i *>(low), *second = static_cast<const __m256i *>(high);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(first)), _mm256_loadu_si256(second), 1);
}
COREKIT_INLINE F32x16 as_floats(Bytes64 x) { return _mm512_castsi512_ps(x); }
COREKIT_INLINE F32x16 low_halves(Bytes64 x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
COREKIT_INLINE F32x16 high_halves(Bytes64 x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int32_t(0xFFFF0000)))); }
#elif defined(__AVX2__)
COREKIT_INLINE Bytes64 load_two(const void *low, const void *high) {
    return {_mm256_loadu_si256(static_cast<const __m256i *>(low)), _mm256_loadu_si256(static_cast<const __m256i *>(high))};
}
COREKIT_INLINE F32x16 as_floats(Bytes64 x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
COREKIT_INLINE F32x16 low_halves(Bytes64 x) { return as_floats({_mm256_slli_epi32(x.low, 16), _mm256_slli_epi32(x.high, 16)}); }
COREKIT_INLINE F32x16 high_halves(Bytes64 x) {
    const __m256i mask = _mm256_set1_epi32(int32_t(0xFFFF0000));
    return as_floats({_mm256_and_si256(x.low, mask), _mm256_and_si256(x.high, mask)});
}
#else
COREKIT_INLINE Bytes64 load_two(const void *low, const void *high) {
    Bytes64 out;
    memcpy(&out, low, 32);
    memcpy(reinterpret_cast<uint8_t *>(&out) + 32, high, 32);
    return out;
}
COREKIT_INLINE F32x16 as_floats(Bytes64 x) {
    F32x16 out;
    memcpy(&out, &x, sizeof out);
    return out;
}
COREKIT_INLINE F32x16 of_halves(Bytes64 x, int shift) {
    uint32_t words[16];
    memcpy(words, &x, sizeof words);
    for (uint32_t &word : words) word = word << shift & 0xFFFF0000;
    memcpy(&x, words, sizeof words);
    return as_floats(x);
}
COREKIT_INLINE F32x16 low_halves(Bytes64 x) { return of_halves(x, 16); }
COREKIT_INLINE F32x16 high_halves(Bytes64 x) { return of_halves(x, 0); }
#endif

struct Floats {
    static constexpr int numbers = 1; // of a word
    COREKIT_INLINE F32x16 number(Bytes64 words, int) { return as_floats(words); }
};

struct Halves {
    static constexpr int numbers = 2;
    COREKIT_INLINE F32x16 number(Bytes64 words, int which) { return which ? high_halves(words) : low_halves(words); }
};

// Into the second cache.
COREKIT_INLINE void prefetch_far(const void *at) { __builtin_prefetch(at, 0, 2); }

} // namespace COREKIT_LEVEL
} // namespace corekit
