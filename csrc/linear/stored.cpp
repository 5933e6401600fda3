#include "linear/stored.h"

#include <string.h>

namespace corekit {

size_t stored_block_bytes(Stored type) {
    switch (type) {
    case Stored::q4_0: return 18; // half d, 16 bytes: weight i in the low nibble of byte i, weight 16 + i in its high one
    case Stored::q4_1: return 20; // half d, half m, then as q4_0
    case Stored::q8_0: return 34; // half d, 32 signed bytes
    case Stored::f32: return 128;
    default: return 64;
    }
}

bool stored_in_blocks(Stored type) { return type == Stored::q4_0 || type == Stored::q4_1 || type == Stored::q8_0; }

float half_to_float(uint16_t half) { // IEEE 754 binary16
    const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 1023;
    uint32_t bits;
    if (exponent == 31) bits = 0x7F800000 | fraction << 13;
    else if (exponent) bits = (exponent + 112) << 23 | fraction << 13;
    else {
        const float small = float(fraction) * 5.9604644775390625e-8f; // 2^-24
        memcpy(&bits, &small, 4);
    }
    bits |= sign;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

uint16_t float_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

namespace {

float half_at(const uint8_t *from) {
    uint16_t half;
    memcpy(&half, from, 2);
    return half_to_float(half);
}

void read_halves(const uint8_t *from, int count, bool bf16, float *to) {
    for (int i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + 2 * i, 2);
        const uint32_t wide = uint32_t(half) << 16;
        if (bf16) memcpy(to + i, &wide, 4);
        else to[i] = half_to_float(half);
    }
}

} // namespace

void read_block(Stored type, const uint8_t *row, int block, int count, float *to) {
    const uint8_t *from = row + block * stored_block_bytes(type);
    switch (type) {
    case Stored::q4_0: {
        const float d = half_at(from);
        for (int i = 0; i < 16; i++) to[i] = d * float((from[2 + i] & 15) - 8), to[16 + i] = d * float((from[2 + i] >> 4) - 8);
        break;
    }
    case Stored::q4_1: {
        const float d = half_at(from), m = half_at(from + 2);
        for (int i = 0; i < 16; i++) to[i] = d * float(from[4 + i] & 15) + m, to[16 + i] = d * float(from[4 + i] >> 4) + m;
        break;
    }
    case Stored::q8_0: {
        const float d = half_at(from);
        for (int i = 0; i < 32; i++) to[i] = d * float(int8_t(from[2 + i]));
        break;
    }
    case Stored::f32: memcpy(to, from, size_t(count) * 4); break;
    case Stored::f16: read_halves(from, count, false, to); break;
    case Stored::bf16: read_halves(from, count, true, to); break;
    }
    for (int i = count; i < block_depth; i++) to[i] = 0;
}

} // namespace corekit
