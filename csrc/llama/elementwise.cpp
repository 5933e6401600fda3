// The functions of elementwise.h, for one instruction set. A row's result depends on that row alone, lane by lane.
#include <math.h>

#include "llama/elementwise_levels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr int lanes = 16;

int lanes_left(int count, int at) { return count - at < lanes ? count - at : lanes; }

void rms_norm(const float *from, const float *weight, int count, float epsilon, float *to) {
    F32x16 even = zero(), odd = zero();
    int at = 0;
    for (; at + 2 * lanes <= count; at += 2 * lanes) {
        const F32x16 a = load(from + at), b = load(from + at + lanes);
        even = fma(a, a, even);
        odd = fma(b, b, odd);
    }
    for (; at < count; at += lanes) {
        const F32x16 a = load_first(from + at, lanes_left(count, at));
        even = fma(a, a, even);
    }
    const F32x16 factor = set1(1.0f / sqrtf(reduce_add(add(even, odd)) / float(count) + epsilon));
    for (at = 0; at + lanes <= count; at += lanes) store(to + at, mul(mul(load(from + at), factor), load(weight + at)));
    if (at < count) {
        const int left = count - at;
        store_first(to + at, mul(mul(load_first(from + at, left), factor), load_first(weight + at, left)), left);
    }
}

void rotate(float *head, const float *turns, int head_dim) {
    const int half = head_dim / 2;
    for (int at = 0; at < half; at += lanes) {
        const int left = lanes_left(half, at);
        const F32x16 a = load_first(head + at, left), b = load_first(head + half + at, left);
        const F32x16 cosine = load_first(turns + at, left), sine = load_first(turns + half + at, left);
        store_first(head + at, sub(mul(a, cosine), mul(b, sine)), left);
        store_first(head + half + at, add(mul(b, cosine), mul(a, sine)), left);
    }
}

void silu_mul(const float *from, int count, float *to) {
    for (int at = 0; at < count; at += lanes) store(to + at, mul(silu(load(from + 2 * at)), load(from + 2 * at + lanes)));
}

void widen(const uint16_t *from, int count, float *to) {
    int at = 0;
    for (; at + lanes <= count; at += lanes) store(to + at, load_bf16(from + at));
    for (; at < count; at++) to[at] = bf16_to_float(from[at]);
}

void narrow(const float *from, int count, uint16_t *to) {
    int at = 0;
    for (; at + lanes <= count; at += lanes) store_bf16(to + at, load(from + at));
    for (; at < count; at++) to[at] = float_to_bf16(from[at]);
}

} // namespace

const ElementwiseKernels elementwise = {rms_norm, rotate, silu_mul, widen, narrow};

} // namespace COREKIT_LEVEL
} // namespace corekit
