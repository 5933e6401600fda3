// The sixteen lanes of vec.h on AVX512 (F, BW, VL, DQ, VNNI); bfloat16 products by AVX512-BF16 where that is compiled in.
#pragma once

#include <immintrin.h>

#define COREKIT_LANE static inline __attribute__((always_inline))

namespace corekit {
namespace COREKIT_LEVEL {

typedef __m512 F32x16;
typedef __m512i I32x16;
typedef __m512i Bytes64;

COREKIT_LANE F32x16 zero() { return _mm512_setzero_ps(); }
COREKIT_LANE F32x16 set1(float x) { return _mm512_set1_ps(x); }
COREKIT_LANE F32x16 load(const float *from) { return _mm512_loadu_ps(from); }
COREKIT_LANE void store(float *to, F32x16 x) { _mm512_storeu_ps(to, x); }
// The first count lanes (0 to 16); the others are 0, or left alone.
COREKIT_LANE F32x16 load_first(const float *from, int count) { return _mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), from); }
COREKIT_LANE void store_first(float *to, F32x16 x, int count) { _mm512_mask_storeu_ps(to, __mmask16((1u << count) - 1), x); }
COREKIT_LANE F32x16 add(F32x16 a, F32x16 b) { return _mm512_add_ps(a, b); }
COREKIT_LANE F32x16 sub(F32x16 a, F32x16 b) { return _mm512_sub_ps(a, b); }
COREKIT_LANE F32x16 mul(F32x16 a, F32x16 b) { return _mm512_mul_ps(a, b); }
COREKIT_LANE F32x16 div(F32x16 a, F32x16 b) { return _mm512_div_ps(a, b); }
COREKIT_LANE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return _mm512_fmadd_ps(a, b, c); } // a * b + c
COREKIT_LANE F32x16 max(F32x16 a, F32x16 b) { return _mm512_max_ps(a, b); }
COREKIT_LANE F32x16 min(F32x16 a, F32x16 b) { return _mm512_min_ps(a, b); }
COREKIT_LANE F32x16 abs(F32x16 x) { return _mm512_abs_ps(x); }
COREKIT_LANE F32x16 round_nearest(F32x16 x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
COREKIT_LANE F32x16 scale_by_power_of_two(F32x16 x, F32x16 power) { return _mm512_scalef_ps(x, power); }
// x where test >= limit, else 0
COREKIT_LANE F32x16 zero_below(F32x16 x, F32x16 test, float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(test, _mm512_set1_ps(limit), _CMP_GE_OQ), x);
}
// x in the first count lanes, other in the rest
COREKIT_LANE F32x16 keep_first(F32x16 x, int count, F32x16 other) { return _mm512_mask_mov_ps(other, __mmask16((1u << count) - 1), x); }
COREKIT_LANE float reduce_add(F32x16 x) { return _mm512_reduce_add_ps(x); }
COREKIT_LANE float reduce_max(F32x16 x) { return _mm512_reduce_max_ps(x); }

COREKIT_LANE F32x16 load_half(const uint16_t *from) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))); }
COREKIT_LANE F32x16 load_bf16(const uint16_t *from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from))), 16));
}
// Lane l: bfloat16 at place 2 l, and 2 l + 1, of 32.
COREKIT_LANE F32x16 load_even_bf16(const void *from) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16)); }
COREKIT_LANE F32x16 load_odd_bf16(const void *from) { return _mm512_castsi512_ps(_mm512_maskz_loadu_epi16(0xAAAAAAAA, from)); }
COREKIT_LANE void store_bf16(uint16_t *to, F32x16 x) {
#if defined(__AVX512BF16__)
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
#else
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7FFF)), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm512_cvtepi32_epi16(chosen));
#endif
}

// Zero in a register of its own, by an exclusive or, which costs nothing: the compiler would copy one zero into many, which does.
// Volatile, or it would copy this one.
COREKIT_LANE I32x16 fresh_zero_ints() {
    I32x16 fresh;
    asm volatile("vpxord %0, %0, %0" : "=v"(fresh));
    return fresh;
}
COREKIT_LANE F32x16 to_float(I32x16 x) { return _mm512_cvtepi32_ps(x); }
// To the nearest integer, kept in -128..127, one byte each.
COREKIT_LANE void store_int8(int8_t *to, F32x16 x) { _mm_storeu_si128(reinterpret_cast<__m128i *>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x))); }

COREKIT_LANE Bytes64 load_bytes(const void *from) { return _mm512_loadu_si512(from); }
// The same in a register: the compiler would load it again for every use.
COREKIT_LANE Bytes64 in_register(Bytes64 x) {
    asm("" : "+v"(x));
    return x;
}
COREKIT_LANE Bytes64 low_nibbles(Bytes64 x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
COREKIT_LANE Bytes64 high_nibbles(Bytes64 x) { return _mm512_and_si512(_mm512_srli_epi16(x, 4), _mm512_set1_epi8(15)); }

// Lane l: byte 4 l + i of x, and four-bit number 8 l + i.
template <int i> COREKIT_LANE F32x16 byte_of_lane(Bytes64 x) {
    return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(x, 8 * i), _mm512_set1_epi32(255)));
}
template <int i> COREKIT_LANE F32x16 nibble_of_lane(Bytes64 x) { // looked up: the permutation takes the low four bits alone
    return _mm512_permutexvar_ps(_mm512_srli_epi32(x, 4 * i), _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}
// bfloat16 of even[l] at place 2 l and of odd[l] at 2 l + 1, to the nearest, ties away from zero.
COREKIT_LANE void store_bf16_pairs(uint16_t *to, F32x16 even, F32x16 odd) {
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
    _mm512_storeu_si512(to, _mm512_mask_blend_epi16(0xAAAAAAAA, low, _mm512_add_epi32(_mm512_castps_si512(odd), half)));
}

// Lane l: acc + sum over i < 4 of weights[4 l + i] * x[i], weights unsigned, the four x signed bytes. Exact.
COREKIT_LANE I32x16 dot_u8s8(I32x16 acc, Bytes64 weights, int32_t x) { return _mm512_dpbusd_epi32(acc, weights, _mm512_set1_epi32(x)); }
// Sums of dots of weights below 16. Eight at most.
typedef I32x16 NibbleDots;
COREKIT_LANE NibbleDots no_nibble_dots() { return fresh_zero_ints(); }
COREKIT_LANE NibbleDots dot_u4s8(NibbleDots acc, Bytes64 weights, int32_t x) { return dot_u8s8(acc, weights, x); }
COREKIT_LANE I32x16 to_ints(NibbleDots x) { return x; }
// Lane l: acc + a[2 l] * b[0] + a[2 l + 1] * b[1], all bfloat16, b the two of a 32-bit word.
COREKIT_LANE F32x16 dot_bf16(F32x16 acc, Bytes64 a, int32_t b) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(_mm512_set1_epi32(b)));
#else
    const __m512i high = _mm512_set1_epi32(int32_t(0xFFFF0000));
    const __m512i both = _mm512_set1_epi32(b);
    const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)));
    acc = _mm512_add_ps(acc, even);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)), _mm512_castsi512_ps(_mm512_and_si512(both, high)), acc);
#endif
}

COREKIT_LANE void prefetch(const void *at) { _mm_prefetch(static_cast<const char *>(at), _MM_HINT_T0); }

} // namespace COREKIT_LEVEL
} // namespace corekit
