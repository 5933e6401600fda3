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

// The values of one head go to a token of a block. T: uint16_t for bfloat16, or float.
template <class T> void write_head(const KvPlace &place, const T *from, int head_dim, int64_t block, int token, int head) {
    T *to = static_cast<T *>(place.address) + block * place.block_stride + head * place.head_stride + token / place.token_group * place.token_stride +
            token % place.token_group;
    const int group = place.dim_group;
    for (int dim = 0; dim < head_dim; dim += group) {
        T *at = to + dim / group * place.dim_stride;
        for (int i = 0; i < group && dim + i < head_dim; i++) at[i] = from[dim + i];
    }
}

} // namespace corekit
