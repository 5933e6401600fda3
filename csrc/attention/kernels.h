// Attention of a few queries to one partition of a row's keys, one table of functions for each instruction set.
//
// Keys of a row are cut into partitions at fixed positions; softmax and sum of a partition are computed on their own, and partitions
// are joined in their order by one formula (Dao 2023, FlashAttention-2, algorithm 1; Dao et al. 2023, Flash-Decoding). So a query's
// result does not depend on what is computed beside it, nor on whether partitions went to several threads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "simd/instruction_set.h"

namespace corekit {

constexpr int partition_length = 256;
constexpr int half_length = 8; // positions that lie side by side in a block whatever its size; two halves fill a vector
constexpr int max_dim = 1024;
constexpr int max_rows_at_once = 6; // of any instruction set

enum class Number : int { f32, bf16 };

// A layer, and how a block of its cache lies in memory: for each kv head keys [words of a key][position] and behind them values
// [row][lane], all in words of 32 bits. A word is a float, or two bfloat16: of a key two neighbouring dims, of values one dim at two
// neighbouring positions. Lanes are dims, padded to whole vectors with what nobody reads.
struct Shape {
    Number cache;
    int block_size;
    int num_kv_heads;
    int group; // query heads of a kv head
    int key_dim, value_dim;
    int key_words;   // of one key
    int value_lanes; // value_dim up to a multiple of 16
    size_t head_bytes, block_bytes, values_offset;
    float scale;
    float soft_cap;    // 0: none
    int window, chunk; // 0: none
};

// The first position that a query may see. Static, so that each file has its own: see simd/vec.h.
static inline int first_seen(const Shape &shape, int position) {
    int first = 0;
    if (shape.window && position - shape.window + 1 > first) first = position - shape.window + 1;
    if (shape.chunk && position / shape.chunk * shape.chunk > first) first = position / shape.chunk * shape.chunk;
    return first;
}

// Numbers of the caller: element (token, head, dim) at token * token_stride + head * head_stride + dim.
struct Rows {
    const void *at;
    Number number;
    int64_t token_stride, head_stride;
};

// Positions begin .. end - 1 of a row at one kv head, of one partition: begin is a multiple of partition_length. end <= begin: none.
struct Stretch {
    const uint8_t *cache;  // of the layer at the kv head: block b at b * block_bytes
    const int32_t *blocks; // of the row
    int begin, end;
};

// Consecutive queries of one row and all heads of one kv head: query q of head g is number q * group + g, and stands at
// first_position + q. A query at a position below 0 sees nothing.
struct Tile {
    Stretch stretch;
    const float *queries; // [numbers, key_dim], as `prepare` made them
    int first_position;
    int num_queries;
};

// What is known of a query so far: value_lanes sums, then the maximum of its scores and the sum of its weights.
constexpr float no_score = -1e29f; // the maximum of nothing; scores that are masked lie further below
static inline size_t state_floats(const Shape &shape) { return size_t(shape.value_lanes) + 16; }

// What a thread needs besides: scores of the rows at once, two halves of values, and a partition as floats.
static inline size_t scores_bytes() { return size_t(max_rows_at_once) * partition_length * 4; }
static inline size_t edges_bytes(const Shape &shape) { return size_t(2) * half_length * shape.value_lanes * 4; }
static inline size_t scratch_bytes(const Shape &shape) {
    const size_t floats = shape.cache == Number::f32 ? 0 : size_t(partition_length) * (shape.key_dim + shape.value_lanes);
    return scores_bytes() + edges_bytes(shape) + floats * 4;
}


struct AttentionKernels {
    // The queries of a tile as floats: token by token, head by head from first_head on.
    void (*prepare)(const Shape &shape, const Rows &queries, int first_token, int num_queries, int first_head, float *to);
    // Joins what the stretch gives to the states of the tile's queries. next: what this thread attends to afterwards, if it is known.
    // scratch: scratch_bytes(shape), 64-byte aligned.
    void (*attend)(const Shape &shape, const Tile &tile, const Stretch &next, float *states, uint8_t *scratch);
    // The state of nothing.
    void (*clear)(const Shape &shape, float *states, int count);
    // Joins states that were computed from the clear state, in the order of their partitions.
    void (*join)(const Shape &shape, float *states, const float *later, int count);
    // Results of count queries of the heads first_head .. first_head + group - 1: out [token, head, value_dim], contiguous, num_heads
    // heads. sinks: one more score for each head, or null.
    void (*finish)(const Shape &shape, const float *states, const float *sinks, int first_token, int num_queries, int first_head, int num_heads, void *out,
                   Number number);
    // One token's key and value of every head to its place. block: of the layer, at kv head 0.
    void (*write)(const Shape &shape, const Rows &keys, const Rows &values, int token, uint8_t *block, int offset);
};

const AttentionKernels &attention_kernels(InstructionSet set);

} // namespace corekit
