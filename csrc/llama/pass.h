// One native call: the rest of a layer after its attention, then the beginning of the next layer up to what its attention reads.
#pragma once

#include "llama/decoder.h"

namespace corekit {

struct Pass {
    Decoder *decoder;
    const DecoderLayer *ending;    // the rest of it; null: embed the tokens
    const DecoderLayer *beginning; // null: the final norm
    const KvLayer *kv;             // of `beginning`; null: keys and values are passed
    const void *attended;          // [tokens, num_heads * head_dim]
    AttentionInputs next;
    float *hidden;
    int num_rows;            // of the whole step: it says which kernels compute
    const float *for_logits; // instead of all that: hidden states of num_rows rows, for the head
    float *logits;
};

// The job of the pool. arg: a Pass.
void run_pass(void *arg, int thread, int num_threads);

// Rows that go through a layer together, so that their activations stay in the cache. Where a step has more, groups follow each other.
constexpr int max_group_rows = 256;

} // namespace corekit
