// Where the keys and values of a layer lie in the KV pools of an attention backend, and how one head of one token gets there.
#pragma once

#include <cstdint>

namespace corekit {

// As corekit.api.KvTensor: strides count elements.
struct KvPlace {
    void *address;
    int64_t block_stride, head_stride, token_stride, dim_stride;
    int token_group, dim_group;
};

struct KvLayer {
    bool is_written; // false: this layer's keys and values are passed
    bool is_bf16;
    KvPlace key, value;
};

// Where the first dim of a head lies. T: uint16_t for bfloat16, or float.
template <class T> T *first_dim(const KvPlace &place, int64_t block, int token, int head) {
    return static_cast<T *>(place.address) + block * place.block_stride + head * place.head_stride + token / place.token_group * place.token_stride +
           token % place.token_group;
}

// The values of one head go to a token of a block.
template <class T> void write_head(const KvPlace &place, const T *from, int head_dim, int64_t block, int token, int head) {
    T *to = first_dim<T>(place, block, token, head);
    const int group = place.dim_group;
    if (group == 1) {
        for (int dim = 0; dim < head_dim; dim++, to += place.dim_stride) *to = from[dim];
        return;
    }
    int dim = 0;
    for (; dim + group <= head_dim; dim += group, to += place.dim_stride)
        for (int i = 0; i < group; i++) to[i] = from[dim + i];
    for (int i = 0; dim + i < head_dim; i++) to[i] = from[dim + i];
}

// Has the cache lines that write_head will write on their way. They lie far apart, and stores that miss wait for each other.
template <class T> void expect_head(const KvPlace &place, int head_dim, int64_t block, int token, int head) {
    constexpr int64_t line = 64;
    const T *to = first_dim<T>(place, block, token, head);
    const int64_t count = (head_dim + place.dim_group - 1) / place.dim_group, stride = place.dim_stride * int64_t(sizeof(T));
    const int64_t step = stride > 0 && stride < line ? line / stride : 1;
    for (int64_t at = 0; at < count; at += step) __builtin_prefetch(to + at * place.dim_stride, 1);
}

} // namespace corekit
