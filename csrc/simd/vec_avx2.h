// The sixteen lanes of vec.h as two halves of AVX2 (with FMA and F16C).
#pragma once

#include <immintrin.h>

#define COREKIT_LANE static inline __attribute__((always_inline))

namespace corekit {
namespace COREKIT_LEVEL {

struct F32x16 {
    __m256 low, high;
};
struct I32x16 {
    __m256i low, high;
};
struct Bytes64 {
    __m256i low, high;
};

COREKIT_LANE __m256i first_mask(int count) { // of eight lanes
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

COREKIT_LANE F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
COREKIT_LANE F32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
COREKIT_LANE F32x16 load(const float *from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
COREKIT_LANE void store(float *to, F32x16 x) {
    _mm256_storeu_ps(to, x.low);
    _mm256_storeu_ps(to + 8, x.high);
}
// The first count lanes (0 to 16); the others are 0, or left alone.
COREKIT_LANE F32x16 load_first(const float *from, int count) {
    return {_mm256_maskload_ps(from, first_mask(count)), count > 8 ? _mm256_maskload_ps(from + 8, first_mask(count - 8)) : _mm256_setzero_ps()};
}
COREKIT_LANE void store_first(float *to, F32x16 x, int count) {
    _mm256_maskstore_ps(to, first_mask(count), x.low);
    if (count > 8) _mm256_maskstore_ps(to + 8, first_mask(count - 8), x.high);
}
COREKIT_LANE F32x16 add(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
COREKIT_LANE F32x16 sub(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
COREKIT_LANE F32x16 mul(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
COREKIT_LANE F32x16 div(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
COREKIT_LANE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)}; }
COREKIT_LANE F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
COREKIT_LANE F32x16 min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
COREKIT_LANE F32x16 abs(F32x16 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}
COREKIT_LANE F32x16 round_nearest(F32x16 x) {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.low, mode), _mm256_round_ps(x.high, mode)};
}
// power is whole and within -126..127
COREKIT_LANE F32x16 scale_by_power_of_two(F32x16 x, F32x16 power) {
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i low = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power.low), bias), 23);
    const __m256i high = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(power.high), bias), 23);
    return {_mm256_mul_ps(x.low, _mm256_castsi256_ps(low)), _mm256_mul_ps(x.high, _mm256_castsi256_ps(high))};
}
// x where test >= limit, else 0
COREKIT_LANE F32x16 zero_below(F32x16 x, F32x16 test, float limit) {
    const __m256 least = _mm256_set1_ps(limit);
    return {_mm256_and_ps(x.low, _mm256_cmp_ps(test.low, least, _CMP_GE_OQ)), _mm256_and_ps(x.high, _mm256_cmp_ps(test.high, least, _CMP_GE_OQ))};
}
// x in the first count lanes, other in the rest
COREKIT_LANE F32x16 keep_first(F32x16 x, int count, F32x16 other) {
    return {_mm256_blendv_ps(other.low, x.low, _mm256_castsi256_ps(first_mask(count))),
            _mm256_blendv_ps(other.high, x.high, _mm256_castsi256_ps(first_mask(count - 8)))};
}
COREKIT_LANE float reduce_add(F32x16 x) {
    const __m256 both = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
COREKIT_LANE float reduce_max(F32x16 x) {
    const __m256 both = _mm256_max_ps(x.low, x.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(both), _mm256_extractf128_ps(both, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

COREKIT_LANE F32x16 load_half(const uint16_t *from) {
    const __m128i *halves = reinterpret_cast<const __m128i *>(from);
    return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
}
COREKIT_LANE F32x16 load_bf16(const uint16_t *from) {
    const __m128i *halves = reinterpret_cast<const __m128i *>(from);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(halves + 1)), 16))};
}
// Lane l: bfloat16 at place 2 l, and 2 l + 1, of 32.
COREKIT_LANE F32x16 load_even_bf16(const void *from) {
    const __m256i *halves = static_cast<const __m256i *>(from);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(halves), 16)), _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(halves + 1), 16))};
}
COREKIT_LANE F32x16 load_odd_bf16(const void *from) {
    const __m256i *halves = static_cast<const __m256i *>(from), top = _mm256_set1_epi32(int32_t(0xFFFF0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(halves), top)), _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(halves + 1), top))};
}
COREKIT_LANE __m256i bf16_bits(__m256 x) { // in the low half of each lane, rounded to the nearest, ties to even
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7FFF)), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
COREKIT_LANE void store_bf16(uint16_t *to, F32x16 x) {
    const __m256i packed = _mm256_packus_epi32(bf16_bits(x.low), bf16_bits(x.high));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), _mm256_permute4x64_epi64(packed, 0xD8));
}

COREKIT_LANE I32x16 fresh_zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
COREKIT_LANE F32x16 to_float(I32x16 x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
// To the nearest integer, kept in -128..127, one byte each.
COREKIT_LANE void store_int8(int8_t *to, F32x16 x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i *>(to), bytes);
}

COREKIT_LANE Bytes64 load_bytes(const void *from) {
    const __m256i *halves = static_cast<const __m256i *>(from);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
COREKIT_LANE Bytes64 in_register(Bytes64 x) { return x; }
COREKIT_LANE Bytes64 low_nibbles(Bytes64 x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(x.low, mask), _mm256_and_si256(x.high, mask)};
}
COREKIT_LANE Bytes64 high_nibbles(Bytes64 x) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(_mm256_srli_epi16(x.low, 4), mask), _mm256_and_si256(_mm256_srli_epi16(x.high, 4), mask)};
}

// Lane l: bits [first, first + width) of the lane.
template <int first, int width> COREKIT_LANE F32x16 bits_of_lane(Bytes64 x) {
    const __m256i mask = _mm256_set1_epi32((1 << width) - 1);
    return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x.low, first), mask)),
            _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(x.high, first), mask))};
}
// Lane l: byte 4 l + i of x, and four-bit number 8 l + i.
template <int i> COREKIT_LANE F32x16 byte_of_lane(Bytes64 x) { return bits_of_lane<8 * i, 8>(x); }
template <int i> COREKIT_LANE F32x16 nibble_of_lane(Bytes64 x) { return bits_of_lane<4 * i, 4>(x); }
COREKIT_LANE __m256i bf16_pairs(__m256 even, __m256 odd) {
    const __m256i half = _mm256_set1_epi32(0x8000);
    const __m256i low = _mm256_srli_epi32(_mm256_add_epi32(_mm256_castps_si256(even), half), 16);
    return _mm256_blend_epi16(low, _mm256_add_epi32(_mm256_castps_si256(odd), half), 0xAA);
}
// bfloat16 of even[l] at place 2 l and of odd[l] at 2 l + 1, to the nearest, ties away from zero.
COREKIT_LANE void store_bf16_pairs(uint16_t *to, F32x16 even, F32x16 odd) {
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), bf16_pairs(even.low, odd.low));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to) + 1, bf16_pairs(even.high, odd.high));
}

// Even and odd bytes apart, as 16-bit numbers: their products and sums of two fit 32 bits, where vpmaddubsw would saturate.
COREKIT_LANE __m256i dot_half_u8s8(__m256i acc, __m256i weights, __m256i even_x, __m256i odd_x) {
    const __m256i even = _mm256_and_si256(weights, _mm256_set1_epi16(255)), odd = _mm256_srli_epi16(weights, 8);
    return _mm256_add_epi32(acc, _mm256_add_epi32(_mm256_madd_epi16(even, even_x), _mm256_madd_epi16(odd, odd_x)));
}
// Lane l: acc + sum over i < 4 of weights[4 l + i] * x[i], weights unsigned, the four x signed bytes. Exact.
COREKIT_LANE I32x16 dot_u8s8(I32x16 acc, Bytes64 weights, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    const __m256i even_x = _mm256_srai_epi16(_mm256_slli_epi16(all, 8), 8), odd_x = _mm256_srai_epi16(all, 8);
    return {dot_half_u8s8(acc.low, weights.low, even_x, odd_x), dot_half_u8s8(acc.high, weights.high, even_x, odd_x)};
}
// Sums of dots of weights below 16. Eight at most: those of two products each, in 16 bits.
struct NibbleDots {
    __m256i low, high;
};
COREKIT_LANE NibbleDots no_nibble_dots() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
COREKIT_LANE NibbleDots dot_u4s8(NibbleDots acc, Bytes64 weights, int32_t x) {
    const __m256i all = _mm256_set1_epi32(x);
    return {_mm256_add_epi16(acc.low, _mm256_maddubs_epi16(weights.low, all)), _mm256_add_epi16(acc.high, _mm256_maddubs_epi16(weights.high, all))};
}
COREKIT_LANE I32x16 to_ints(NibbleDots x) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(x.low, ones), _mm256_madd_epi16(x.high, ones)};
}
COREKIT_LANE __m256 dot_half_bf16(__m256 acc, __m256i a, __m256i b) {
    const __m256i top = _mm256_set1_epi32(int32_t(0xFFFF0000));
    acc = _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16)), acc);
    return _mm256_fmadd_ps(_mm256_castsi256_ps(_mm256_and_si256(a, top)), _mm256_castsi256_ps(_mm256_and_si256(b, top)), acc);
}
// Lane l: acc + a[2 l] * b[0] + a[2 l + 1] * b[1], all bfloat16, b the two of a 32-bit word.
COREKIT_LANE F32x16 dot_bf16(F32x16 acc, Bytes64 a, int32_t b) {
    const __m256i both = _mm256_set1_epi32(b);
    return {dot_half_bf16(acc.low, a.low, both), dot_half_bf16(acc.high, a.high, both)};
}

COREKIT_LANE void prefetch(const void *at) { _mm_prefetch(static_cast<const char *>(at), _MM_HINT_T0); }

} // namespace COREKIT_LEVEL
} // namespace corekit
