// A decoder of the Llama family between its calls of attention: weights, buffers, and the passes that the threads of a pool run.
// Knows no file and no request; attention and the KV pools belong to others.
//
// A step is start, then advance after the attention of each layer but the last, then finish after that of the last.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "corekit/pool.h"
#include "linear/kernels.h"
#include "simd/buffer.h"
#include "llama/elementwise.h"
#include "llama/kv_place.h"
#include "llama/packed_matrix.h"

namespace corekit {

struct DecoderShape {
    int hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size, num_layers, num_positions;
    float norm_epsilon;
    bool is_bf16; // of query, key, value and what attention gives; else float

    int query_size() const { return num_heads * head_dim; }
    int num_projected_heads() const { return num_heads + 2 * num_kv_heads; }
    int qkv_size() const { return num_projected_heads() * head_dim; }
    int padded_intermediate() const { return interleaved_outputs(intermediate_size) / 2; }
};

using Weights = std::shared_ptr<const PackedMatrix>;
using Floats = std::vector<float>; // empty: there is none

struct DecoderLayer {
    Weights qkv, output, gate_up, down; // q, k and v one after the other; gate and up interleaved by panels
    Floats qkv_bias, output_bias, gate_bias, up_bias, down_bias;
    Floats input_norm, mlp_norm, query_norm, key_norm;
    bool rotates = true;
    Floats gate_up_bias = {}; // made from the two
};

// Where a pass writes what attention reads. Of no use where keys and values go to the KV pools: null.
struct AttentionInputs {
    void *query, *key, *value;
};

enum class Phase : int { embed, output, gate_up, down, qkv, heads, head };
constexpr const char *phase_names[] = {"embed", "output", "gate_up", "down", "qkv", "heads", "head"};
constexpr int num_phases = 7;

class Decoder {
public:
    // All methods throw std::invalid_argument on what they cannot do, and do nothing then. Those that set something end a step that has started.
    Decoder(corekit_pool *pool, InstructionSet set, const DecoderShape &shape);

    // head: null where it is the embedding.
    void set_ends(Weights embedding, Weights head, Floats final_norm);
    // frequencies: by how much each pair of a head turns per position, head_dim / 2 of them; cosines and sines are multiplied by scale.
    void set_rotary(std::vector<double> frequencies, double scale);
    void set_layer(int layer, DecoderLayer weights);
    // One for each layer; capacity: slots are below. Empty: keys and values are passed.
    void set_kv(std::vector<KvLayer> layers, int block_size, int64_t capacity);

    // slots: null where no layer writes to the KV pools.
    void start(const int64_t *token_ids, const int64_t *positions, const int64_t *slots, int num_tokens, const AttentionInputs &first);
    void advance(int layer, const void *attended, const AttentionInputs &next);
    void finish(const void *attended, float *hidden);
    // hidden [num_rows, hidden_size] -> to [num_rows, vocab_size]
    void logits(const float *hidden, int num_rows, float *to);

    const DecoderShape &shape() const { return shape_; }
    // Seconds that thread 0 spent in each phase since the last call.
    std::array<double, num_phases> take_seconds();

private:
    friend class PassThread;

    void check_ready() const;
    void check_tokens(const int64_t *token_ids, const int64_t *positions, const int64_t *slots, int num_tokens) const;
    void check_inputs(int layer, const AttentionInputs &inputs) const;
    void reserve(int num_rows);
    void know_turns(int num_positions);
    void run(struct Pass &pass);

    corekit_pool *const pool_;
    const LinearKernels &linear_;
    const ElementwiseKernels &elementwise_;
    const DecoderShape shape_;

    Weights embedding_, head_;
    Floats final_norm_;
    std::vector<double> frequencies_;
    double turn_scale_ = 1;
    Floats turns_; // for each position so far head_dim / 2 cosines, then as many sines
    std::vector<DecoderLayer> layers_;
    std::vector<KvLayer> kv_layers_;
    int block_size_ = 1;
    int64_t capacity_ = 0;

    std::mutex busy_; // one pass at a time: buffers are shared
    int num_tokens_ = 0, waiting_layer_ = -1; // whose attention is awaited; -1: no step has started
    std::vector<int> token_ids_, positions_;
    std::vector<int64_t> slots_;
    Buffer<float> residual_, qkv_, gate_up_, gated_;
    Buffer<uint8_t> activations_;
    std::vector<Buffer<uint8_t>> own_activations_, scratch_;
    std::vector<Buffer<float>> own_row_;
    int reserved_rows_ = 0;
    std::array<double, num_phases> seconds_{};
};

} // namespace corekit
