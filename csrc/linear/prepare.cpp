// Rows of activations in the forms that products take.
#include "linear/levels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr float least_magnitude = 1e-30f; // a block below it counts as zero: its inverse scale would be beyond floats

struct Block {
    F32x16 low, high;
};

COREKIT_INLINE Block load_block(const float *from, int count) {
    if (count >= block_depth) return {load(from), load(from + 16)};
    if (count > 16) return {load(from), load_first(from + 16, count - 16)};
    return {load_first(from, count), zero()};
}

void prepare_int8(const float *from, int num_inputs, const Activations &to, int at) {
    const int num_blocks = to.num_inputs / block_depth;
    Int8Block *blocks = to.blocks + size_t(at) * num_blocks;
    float sums[panel_width] = {}; // of every sixteenth block
    F32x16 poison = zero(); // NaN where a value is not finite
    for (int block = 0; block < num_blocks; block++) {
        const int first = block * block_depth;
        const Block x = load_block(from + first, num_inputs - first);
        poison = fma(add(x.low, x.high), zero(), poison);
        const float most = reduce_max(max(abs(x.low), abs(x.high)));
        const float scale = most > least_magnitude ? most / 127 : 0, inverse = most > least_magnitude ? 127 / most : 0;
        const F32x16 low = round_nearest(mul(x.low, set1(inverse))), high = round_nearest(mul(x.high, set1(inverse)));
        store_int8(blocks[block].q, low);
        store_int8(blocks[block].q + 16, high);
        blocks[block].scale = scale;
        blocks[block].scaled_sum = scale * reduce_add(add(low, high)); // whole numbers: exact in any order
        sums[block % panel_width] += blocks[block].scaled_sum;
    }
    to.scaled_sums[at] = reduce_add(load(sums));
    const float nothing = reduce_add(poison);
    if (nothing == 0) return;
    for (int block = 0; block < num_blocks; block++) blocks[block].scale = blocks[block].scaled_sum = nothing;
    to.scaled_sums[at] = nothing;
}

void prepare_bf16(const float *from, int num_inputs, const Activations &to, int at) {
    uint16_t *halves = to.halves + size_t(at) * to.num_inputs;
    for (int first = 0; first < to.num_inputs; first += block_depth) {
        const Block x = load_block(from + first, num_inputs - first);
        store_bf16(halves + first, x.low);
        store_bf16(halves + first + 16, x.high);
    }
}

void prepare_f32(const float *from, int num_inputs, const Activations &to, int at) {
    float *floats = to.floats + size_t(at) * to.num_inputs;
    for (int first = 0; first < to.num_inputs; first += block_depth) {
        const Block x = load_block(from + first, num_inputs - first);
        store(floats + first, x.low);
        store(floats + first + 16, x.high);
    }
}

} // namespace

void prepare(const float *from, int num_inputs, const Activations &to, int at) {
    if (to.prepared == Prepared::int8) prepare_int8(from, num_inputs, to, at);
    else if (to.prepared == Prepared::bf16) prepare_bf16(from, num_inputs, to, at);
    else prepare_f32(from, num_inputs, to, at);
}

} // namespace COREKIT_LEVEL
} // namespace corekit
