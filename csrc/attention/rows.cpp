// What surrounds the products of attention: queries into floats, keys and values into the cache, states into results. Compiled once per
// instruction set.
#include "attention/states.h"
#include "attention/tile.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

static const uint8_t *row_at(const Rows &rows, int token, int head) {
    const int64_t element = token * rows.token_stride + head * rows.head_stride;
    return static_cast<const uint8_t *>(rows.at) + element * (rows.number == Number::bf16 ? 2 : 4);
}

// Numbers of another kind, one behind the other.
static void convert(const uint8_t *from, Number number, int count, Number to_number, void *to) {
    const float *floats = reinterpret_cast<const float *>(from);
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(from);
    if (number == to_number) {
        memcpy(to, from, size_t(count) * (number == Number::bf16 ? 2 : 4));
        return;
    }
    int at = 0;
    if (number == Number::bf16) {
        float *out = static_cast<float *>(to);
        for (; at + 16 <= count; at += 16) store(out + at, load_bf16(halves + at));
        for (; at < count; at++) out[at] = bf16_to_float(halves[at]);
    } else {
        uint16_t *out = static_cast<uint16_t *>(to);
        for (; at + 16 <= count; at += 16) store_bf16(out + at, load(floats + at));
        for (; at < count; at++) out[at] = float_to_bf16(floats[at]);
    }
}

static void prepare(const Shape &shape, const Rows &queries, int first_token, int num_queries, int first_head, float *to) {
    for (int q = 0; q < num_queries; q++)
        for (int g = 0; g < shape.group; g++, to += shape.key_dim)
            convert(row_at(queries, first_token + q, first_head + g), queries.number, shape.key_dim, Number::f32, to);
}

static void clear(const Shape &shape, float *states, int count) {
    for (int at = 0; at < count; at++, states += state_floats(shape)) {
        memset(states, 0, state_floats(shape) * sizeof(float));
        states[shape.value_lanes] = no_score;
    }
}

static void join(const Shape &shape, float *states, const float *later, int count) {
    for (int at = 0; at < count; at++, states += state_floats(shape), later += state_floats(shape)) {
        float *tail = states + shape.value_lanes;
        const Joint joint = joint_of(tail[0], later[shape.value_lanes]);
        join_weights(joint, tail, later[shape.value_lanes + 1]);
        for (int lane = 0; lane < shape.value_lanes; lane += 16) store(states + lane, joined(joint, load(states + lane), load(later + lane)));
    }
}

// A query that saw nothing gives zero.
static void finish(const Shape &shape, const float *states, const float *sinks, int first_token, int num_queries, int first_head, int num_heads, void *out,
                   Number number) {
    for (int q = 0; q < num_queries; q++) {
        for (int g = 0; g < shape.group; g++, states += state_floats(shape)) {
            const float *tail = states + shape.value_lanes;
            F32x16 total = set1(tail[1]), factor = set1(1.0f);
            if (sinks) {
                const Joint joint = joint_of(tail[0], sinks[first_head + g]);
                total = joined(joint, total, set1(1.0f));
                factor = joint.before;
            }
            factor = tail[1] == 0 ? zero() : div(factor, total);
            const size_t at = (size_t(first_token + q) * num_heads + first_head + g) * shape.value_dim;
            for (int lane = 0; lane < shape.value_dim; lane += 16) {
                const F32x16 x = mul(load(states + lane), factor);
                const int count = shape.value_dim - lane < 16 ? shape.value_dim - lane : 16;
                if (number == Number::f32) {
                    store_first(static_cast<float *>(out) + at + lane, x, count);
                } else {
                    uint16_t halves[16];
                    store_bf16(halves, x);
                    memcpy(static_cast<uint16_t *>(out) + at + lane, halves, size_t(count) * 2);
                }
            }
        }
    }
}

static void write(const Shape &shape, const Rows &keys, const Rows &values, int token, uint8_t *block, int offset) {
    alignas(64) uint8_t numbers[max_dim * 4];
    const bool halves = shape.cache == Number::bf16;
    for (int head = 0; head < shape.num_kv_heads; head++, block += shape.head_bytes) {
        convert(row_at(keys, token, head), keys.number, shape.key_dim, shape.cache, numbers);
        uint8_t *key = block + size_t(offset) * 4;
        for (int word = 0; word < shape.key_words; word++, key += size_t(shape.block_size) * 4) memcpy(key, numbers + word * 4, 4);
        convert(row_at(values, token, head), values.number, shape.value_dim, shape.cache, numbers);
        uint8_t *value = block + shape.values_offset + size_t(halves ? offset / 2 : offset) * shape.value_lanes * 4;
        if (!halves) {
            memcpy(value, numbers, size_t(shape.value_dim) * 4);
            continue;
        }
        uint16_t *to = reinterpret_cast<uint16_t *>(value) + offset % 2;
        for (int dim = 0; dim < shape.value_dim; dim++) memcpy(to + 2 * dim, numbers + 2 * dim, 2);
    }
}

extern const AttentionKernels attention_functions;
const AttentionKernels attention_functions = {prepare, attend, clear, join, finish, write};

} // namespace COREKIT_LEVEL
} // namespace corekit
