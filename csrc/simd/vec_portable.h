// The sixteen lanes of vec.h in plain C++: for processors that no other file serves, and the text to hold those files to.
#pragma once

#include <math.h>

#define COREKIT_LANE static inline __attribute__((always_inline))
#define COREKIT_EACH for (int lane = 0; lane < 16; lane++)

namespace corekit {
namespace COREKIT_LEVEL {

struct F32x16 {
    float lane[16];
};
struct I32x16 {
    int32_t lane[16];
};
struct Bytes64 {
    uint8_t byte[64];
};

COREKIT_LANE F32x16 set1(float x) {
    F32x16 out;
    COREKIT_EACH out.lane[lane] = x;
    return out;
}
COREKIT_LANE F32x16 zero() { return set1(0.0f); }
COREKIT_LANE F32x16 load(const float *from) {
    F32x16 out;
    memcpy(&out, from, sizeof out);
    return out;
}
COREKIT_LANE void store(float *to, F32x16 x) { memcpy(to, &x, sizeof x); }
// The first count lanes (0 to 16); the others are 0, or left alone.
COREKIT_LANE F32x16 load_first(const float *from, int count) {
    F32x16 out = zero();
    for (int lane = 0; lane < count; lane++) out.lane[lane] = from[lane];
    return out;
}
COREKIT_LANE void store_first(float *to, F32x16 x, int count) {
    for (int lane = 0; lane < count; lane++) to[lane] = x.lane[lane];
}
#define COREKIT_BINARY(name, expression)                                                                                                                       \
    COREKIT_LANE F32x16 name(F32x16 a, F32x16 b) {                                                                                                             \
        F32x16 out;                                                                                                                                            \
        COREKIT_EACH {                                                                                                                                         \
            const float x = a.lane[lane], y = b.lane[lane];                                                                                                    \
            out.lane[lane] = expression;                                                                                                                       \
        }                                                                                                                                                      \
        return out;                                                                                                                                            \
    }
COREKIT_BINARY(add, x + y)
COREKIT_BINARY(sub, x - y)
COREKIT_BINARY(mul, x *y)
COREKIT_BINARY(div, x / y)
COREKIT_BINARY(max, x > y ? x : y)
COREKIT_BINARY(min, x < y ? x : y)
#undef COREKIT_BINARY
COREKIT_LANE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { // a * b + c; rounded twice where the processor does not do it at once
#ifdef __FP_FAST_FMAF
    COREKIT_EACH c.lane[lane] = __builtin_fmaf(a.lane[lane], b.lane[lane], c.lane[lane]);
#else
    COREKIT_EACH c.lane[lane] += a.lane[lane] * b.lane[lane];
#endif
    return c;
}
COREKIT_LANE F32x16 abs(F32x16 x) {
    COREKIT_EACH x.lane[lane] = x.lane[lane] < 0 ? -x.lane[lane] : x.lane[lane];
    return x;
}
COREKIT_LANE F32x16 round_nearest(F32x16 x) {
    COREKIT_EACH x.lane[lane] = nearbyintf(x.lane[lane]);
    return x;
}
// power is whole and within -126..127
COREKIT_LANE F32x16 scale_by_power_of_two(F32x16 x, F32x16 power) {
    COREKIT_EACH {
        const uint32_t bits = uint32_t(int32_t(power.lane[lane]) + 127) << 23;
        float factor;
        memcpy(&factor, &bits, 4);
        x.lane[lane] *= factor;
    }
    return x;
}
// x where test >= limit, else 0
COREKIT_LANE F32x16 zero_below(F32x16 x, F32x16 test, float limit) {
    COREKIT_EACH x.lane[lane] = test.lane[lane] >= limit ? x.lane[lane] : 0.0f;
    return x;
}
// x in the first count lanes, other in the rest
COREKIT_LANE F32x16 keep_first(F32x16 x, int count, F32x16 other) {
    COREKIT_EACH x.lane[lane] = lane < count ? x.lane[lane] : other.lane[lane];
    return x;
}
COREKIT_LANE float reduce_add(F32x16 x) {
    for (int half = 8; half > 0; half /= 2)
        for (int lane = 0; lane < half; lane++) x.lane[lane] += x.lane[lane + half];
    return x.lane[0];
}
COREKIT_LANE float reduce_max(F32x16 x) {
    float most = x.lane[0];
    COREKIT_EACH most = x.lane[lane] > most ? x.lane[lane] : most;
    return most;
}

COREKIT_LANE F32x16 load_half(const uint16_t *from) { // IEEE 754 binary16
    F32x16 out;
    COREKIT_EACH {
        const uint32_t half = from[lane], sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
        uint32_t bits;
        if (exponent == 31) bits = 0x7F800000 | fraction << 13;
        else if (exponent) bits = (exponent + 112) << 23 | fraction << 13;
        else {
            const float small = float(fraction) * 5.9604644775390625e-8f; // 2^-24
            memcpy(&bits, &small, 4);
        }
        bits |= sign;
        memcpy(&out.lane[lane], &bits, 4);
    }
    return out;
}
COREKIT_LANE F32x16 load_bf16(const uint16_t *from) {
    F32x16 out;
    COREKIT_EACH {
        const uint32_t bits = uint32_t(from[lane]) << 16;
        memcpy(&out.lane[lane], &bits, 4);
    }
    return out;
}
// Lane l: bfloat16 at place 2 l, and 2 l + 1, of 32.
COREKIT_LANE F32x16 load_even_bf16(const void *from) {
    uint32_t pairs[16];
    memcpy(pairs, from, sizeof pairs);
    COREKIT_EACH pairs[lane] <<= 16;
    F32x16 out;
    memcpy(&out, pairs, sizeof out);
    return out;
}
COREKIT_LANE F32x16 load_odd_bf16(const void *from) {
    uint32_t pairs[16];
    memcpy(pairs, from, sizeof pairs);
    COREKIT_EACH pairs[lane] &= 0xFFFF0000;
    F32x16 out;
    memcpy(&out, pairs, sizeof out);
    return out;
}
COREKIT_LANE void store_bf16(uint16_t *to, F32x16 x) { // to the nearest, ties to even
    COREKIT_EACH {
        uint32_t bits;
        memcpy(&bits, &x.lane[lane], 4);
        const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
        to[lane] = uint16_t(is_nan ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
    }
}

COREKIT_LANE I32x16 fresh_zero_ints() {
    I32x16 out;
    memset(&out, 0, sizeof out);
    return out;
}
COREKIT_LANE F32x16 to_float(I32x16 x) {
    F32x16 out;
    COREKIT_EACH out.lane[lane] = float(x.lane[lane]);
    return out;
}
// To the nearest integer, kept in -128..127, one byte each.
COREKIT_LANE void store_int8(int8_t *to, F32x16 x) {
    COREKIT_EACH {
        const float whole = nearbyintf(x.lane[lane]);
        to[lane] = int8_t(whole > -128 ? (whole > 127 ? 127 : whole) : -128); // NaN: -128
    }
}

COREKIT_LANE Bytes64 load_bytes(const void *from) {
    Bytes64 out;
    memcpy(&out, from, sizeof out);
    return out;
}
COREKIT_LANE Bytes64 in_register(Bytes64 x) { return x; }
COREKIT_LANE Bytes64 low_nibbles(Bytes64 x) {
    for (int at = 0; at < 64; at++) x.byte[at] &= 15;
    return x;
}
COREKIT_LANE Bytes64 high_nibbles(Bytes64 x) {
    for (int at = 0; at < 64; at++) x.byte[at] >>= 4;
    return x;
}

// Lane l: byte 4 l + i of x, and four-bit number 8 l + i.
template <int i> COREKIT_LANE F32x16 byte_of_lane(Bytes64 x) {
    F32x16 out;
    COREKIT_EACH out.lane[lane] = float(x.byte[4 * lane + i]);
    return out;
}
template <int i> COREKIT_LANE F32x16 nibble_of_lane(Bytes64 x) {
    F32x16 out;
    COREKIT_EACH out.lane[lane] = float(x.byte[4 * lane + i / 2] >> 4 * (i % 2) & 15);
    return out;
}
// bfloat16 of even[l] at place 2 l and of odd[l] at 2 l + 1, to the nearest, ties away from zero.
COREKIT_LANE void store_bf16_pairs(uint16_t *to, F32x16 even, F32x16 odd) {
    COREKIT_EACH {
        uint32_t bits[2];
        memcpy(&bits[0], &even.lane[lane], 4);
        memcpy(&bits[1], &odd.lane[lane], 4);
        for (int i = 0; i < 2; i++) to[2 * lane + i] = uint16_t((bits[i] + 0x8000) >> 16);
    }
}

// Lane l: acc + sum over i < 4 of weights[4 l + i] * x[i], weights unsigned, the four x signed bytes. Exact.
COREKIT_LANE I32x16 dot_u8s8(I32x16 acc, Bytes64 weights, int32_t x) {
    int8_t signed_x[4];
    memcpy(signed_x, &x, 4);
    COREKIT_EACH for (int i = 0; i < 4; i++) acc.lane[lane] += int32_t(weights.byte[4 * lane + i]) * signed_x[i];
    return acc;
}
// Sums of dots of weights below 16. Eight at most.
typedef I32x16 NibbleDots;
COREKIT_LANE NibbleDots no_nibble_dots() { return fresh_zero_ints(); }
COREKIT_LANE NibbleDots dot_u4s8(NibbleDots acc, Bytes64 weights, int32_t x) { return dot_u8s8(acc, weights, x); }
COREKIT_LANE I32x16 to_ints(NibbleDots x) { return x; }
// Lane l: acc + a[2 l] * b[0] + a[2 l + 1] * b[1], all bfloat16, b the two of a 32-bit word.
COREKIT_LANE F32x16 dot_bf16(F32x16 acc, Bytes64 a, int32_t b) {
    uint16_t halves[32], pair[2];
    memcpy(halves, &a, sizeof halves);
    memcpy(pair, &b, sizeof pair);
    float x[2];
    for (int i = 0; i < 2; i++) {
        const uint32_t bits = uint32_t(pair[i]) << 16;
        memcpy(&x[i], &bits, 4);
    }
    COREKIT_EACH for (int i = 0; i < 2; i++) {
        const uint32_t bits = uint32_t(halves[2 * lane + i]) << 16;
        float value;
        memcpy(&value, &bits, 4);
        acc.lane[lane] += value * x[i];
    }
    return acc;
}

COREKIT_LANE void prefetch(const void *at) { __builtin_prefetch(at); }

} // namespace COREKIT_LEVEL
} // namespace corekit
#undef COREKIT_EACH
