// The two kinds of words of a cache, so that kernels are written once: how many numbers a word has, and its product.
#pragma once

#include "attention/kernels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

// Sixteen words of which eight lie elsewhere.
#if defined(__AVX512F__)
COREKIT_INLINE Bytes64 load_two(const void *low, const void *high) {
    const __m256i *first = static_cast<const __m256i *>(low), *second = static_cast<const __m256i *>(high);
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(first)), _mm256_loadu_si256(second), 1);
}
COREKIT_INLINE F32x16 as_floats(Bytes64 x) { return _mm512_castsi512_ps(x); }
#elif defined(__AVX2__)
COREKIT_INLINE Bytes64 load_two(const void *low, const void *high) {
    return {_mm256_loadu_si256(static_cast<const __m256i *>(low)), _mm256_loadu_si256(static_cast<const __m256i *>(high))};
}
COREKIT_INLINE F32x16 as_floats(Bytes64 x) { return {_mm256_castsi256_ps(x.low), _mm256_castsi256_ps(x.high)}; }
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
#endif

// Words are written as what they hold, and read so that the compiler need not know.
COREKIT_INLINE uint32_t word_at(const uint32_t *from) {
    uint32_t word;
    memcpy(&word, from, 4);
    return word;
}

// Into the second cache.
COREKIT_INLINE void prefetch_far(const void *at) { __builtin_prefetch(at, 0, 2); }

struct Floats {
    static constexpr int numbers = 1;
    COREKIT_INLINE F32x16 dot(F32x16 sum, Bytes64 words, uint32_t word) {
        float factor;
        memcpy(&factor, &word, 4);
        return fma(as_floats(words), set1(factor), sum);
    }
    COREKIT_INLINE void store_weights(uint32_t *to, F32x16 x) { corekit::COREKIT_LEVEL::store(reinterpret_cast<float *>(to), x); }
};

struct Halves {
    static constexpr int numbers = 2;
    COREKIT_INLINE F32x16 dot(F32x16 sum, Bytes64 words, uint32_t word) { return dot_bf16(sum, words, int32_t(word)); }
    COREKIT_INLINE void store_weights(uint32_t *to, F32x16 x) { store_bf16(reinterpret_cast<uint16_t *>(to), x); }
};

} // namespace COREKIT_LEVEL
} // namespace corekit
