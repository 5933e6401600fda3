#include "llama/decoder.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "llama/pass.h"

namespace corekit {

namespace {

using std::to_string;

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument(what); }

void check_size(const char *name, int64_t value, int64_t most) {
    if (value < 1 || value > most) refuse(std::string(name) + " is " + to_string(value) + "; 1 to " + to_string(most) + " are possible");
}

void check_matrix(const char *name, const Weights &weights, int num_outputs, int num_inputs) {
    if (!weights) refuse(std::string(name) + " is missing");
    const Matrix &matrix = weights->matrix();
    if (matrix.num_outputs == num_outputs && matrix.num_inputs == num_inputs) return;
    refuse(std::string(name) + " has " + to_string(matrix.num_outputs) + " outputs and " + to_string(matrix.num_inputs) + " inputs; " + to_string(num_outputs) +
           " and " + to_string(num_inputs) + " are needed");
}

void check_floats(const char *name, const Floats &floats, int count, bool optional) {
    if ((optional && floats.empty()) || floats.size() == size_t(count)) return;
    refuse(std::string(name) + " has " + to_string(floats.size()) + " numbers; " + to_string(count) + " are needed");
}

Floats interleave(Floats gate, Floats up, int padded) {
    gate.resize(padded, 0.0f);
    up.resize(padded, 0.0f);
    Floats both(size_t(padded) * 2);
    for (int at = 0; at < padded; at++) {
        const size_t to = size_t(at / panel_width) * 2 * panel_width + at % panel_width;
        both[to] = gate[at];
        both[to + panel_width] = up[at];
    }
    return both;
}

std::unique_lock<std::mutex> alone(std::mutex &busy) {
    std::unique_lock<std::mutex> lock(busy, std::try_to_lock);
    if (!lock) refuse("another thread is computing with this decoder; it does one thing at a time");
    return lock;
}

} // namespace

Decoder::Decoder(corekit_pool *pool, InstructionSet set, const DecoderShape &shape)
    : pool_(pool), linear_(linear_kernels(set)), elementwise_(elementwise_kernels(set)), shape_(shape) {
    constexpr int most = 1 << 24;
    check_size("hidden_size", shape.hidden_size, most);
    check_size("intermediate_size", shape.intermediate_size, most);
    check_size("num_heads", shape.num_heads, 1 << 14);
    check_size("num_kv_heads", shape.num_kv_heads, shape.num_heads);
    check_size("head_dim", shape.head_dim, 1 << 14);
    check_size("vocab_size", shape.vocab_size, 1 << 30);
    check_size("num_layers", shape.num_layers, 1 << 16);
    check_size("num_positions", shape.num_positions, 1 << 30);
    if (shape.num_heads % shape.num_kv_heads) refuse("num_heads is no multiple of num_kv_heads");
    if (shape.head_dim % 2) refuse("head_dim is odd; its halves are rotated against each other");
    if (!(shape.norm_epsilon >= 0)) refuse("norm_epsilon is negative, or no number");
    layers_.resize(shape.num_layers);
    own_activations_.resize(pool->num_threads);
    scratch_.resize(pool->num_threads);
    own_row_.resize(pool->num_threads);
}

void Decoder::set_ends(Weights embedding, Weights head, Floats final_norm) {
    const auto lock = alone(busy_);
    check_matrix("embedding", embedding, shape_.vocab_size, shape_.hidden_size);
    if (head) check_matrix("head", head, shape_.vocab_size, shape_.hidden_size);
    check_floats("final_norm", final_norm, shape_.hidden_size, false);
    head_ = head ? std::move(head) : embedding;
    embedding_ = std::move(embedding);
    final_norm_ = std::move(final_norm);
    reserved_rows_ = 0;
    waiting_layer_ = -1;
}

void Decoder::set_rotary(std::vector<double> frequencies, double scale) {
    const auto lock = alone(busy_);
    if (frequencies.size() != size_t(shape_.head_dim / 2))
        refuse("there are " + to_string(frequencies.size()) + " rotary frequencies; half of head_dim are needed");
    for (double value : frequencies)
        if (!std::isfinite(value)) refuse("a rotary frequency is not finite");
    if (!std::isfinite(scale)) refuse("the scale of rotary positions is not finite");
    frequencies_ = std::move(frequencies);
    turn_scale_ = scale;
    turns_.clear();
    waiting_layer_ = -1;
}

void Decoder::set_layer(int at, DecoderLayer layer) {
    const auto lock = alone(busy_);
    if (at < 0 || at >= shape_.num_layers) refuse("there is no layer " + to_string(at));
    const int hidden = shape_.hidden_size, inner = shape_.intermediate_size;
    check_matrix("qkv", layer.qkv, shape_.qkv_size(), hidden);
    check_matrix("output", layer.output, hidden, shape_.query_size());
    check_matrix("gate_up", layer.gate_up, 2 * shape_.padded_intermediate(), hidden);
    check_matrix("down", layer.down, hidden, inner);
    check_floats("qkv_bias", layer.qkv_bias, shape_.qkv_size(), true);
    check_floats("output_bias", layer.output_bias, hidden, true);
    check_floats("gate_bias", layer.gate_bias, inner, true);
    check_floats("up_bias", layer.up_bias, inner, layer.gate_bias.empty());
    if (layer.gate_bias.empty() && !layer.up_bias.empty()) refuse("there is a bias for up and none for gate");
    check_floats("down_bias", layer.down_bias, hidden, true);
    check_floats("input_norm", layer.input_norm, hidden, false);
    check_floats("mlp_norm", layer.mlp_norm, hidden, false);
    check_floats("query_norm", layer.query_norm, shape_.head_dim, true);
    check_floats("key_norm", layer.key_norm, shape_.head_dim, true);
    if (!layer.gate_bias.empty()) layer.gate_up_bias = interleave(layer.gate_bias, layer.up_bias, shape_.padded_intermediate());
    layers_[at] = std::move(layer);
    reserved_rows_ = 0;
    waiting_layer_ = -1;
}

void Decoder::set_kv(std::vector<KvLayer> layers, int block_size, int64_t capacity) {
    const auto lock = alone(busy_);
    if (!layers.empty() && int(layers.size()) != shape_.num_layers)
        refuse("the KV pools have " + to_string(layers.size()) + " layers, the model " + to_string(shape_.num_layers));
    if (block_size < 1 || capacity < 0) refuse("a block has at least one token, and there is no negative number of slots");
    for (const KvLayer &layer : layers) {
        if (!layer.is_written) continue;
        for (const KvPlace *place : {&layer.key, &layer.value}) {
            const uintptr_t address = reinterpret_cast<uintptr_t>(place->address);
            if (!address || address % (layer.is_bf16 ? 2 : 4)) refuse("the KV pool's address is null or not aligned to its elements");
            if (place->token_group < 1 || place->dim_group < 1) refuse("groups of tokens and of dims are at least 1");
            if (place->block_stride < 0 || place->head_stride < 0 || place->token_stride < 0 || place->dim_stride < 0)
                refuse("a stride of the KV pool is negative");
        }
    }
    kv_layers_ = std::move(layers);
    block_size_ = block_size;
    capacity_ = capacity;
    waiting_layer_ = -1;
}

void Decoder::check_ready() const {
    if (!embedding_) refuse("the weights are not loaded: set_ends comes first");
    if (frequencies_.empty()) refuse("rotary frequencies are not set");
    for (int at = 0; at < shape_.num_layers; at++)
        if (!layers_[at].qkv) refuse("the weights are not loaded: layer " + to_string(at) + " is missing");
}

void Decoder::check_tokens(const int64_t *token_ids, const int64_t *positions, const int64_t *slots, int num_tokens) const {
    check_size("num_tokens", num_tokens, 1 << 24);
    if (!token_ids || !positions) refuse("token_ids or positions are null");
    const bool writes = std::any_of(kv_layers_.begin(), kv_layers_.end(), [](const KvLayer &layer) { return layer.is_written; });
    if (writes && !slots) refuse("slots are null, and keys and values are to be written to them");
    for (int at = 0; at < num_tokens; at++) {
        if (token_ids[at] < 0 || token_ids[at] >= shape_.vocab_size)
            refuse("token " + to_string(at) + " of the step has id " + to_string(token_ids[at]) + "; ids are 0 to " + to_string(shape_.vocab_size - 1));
        if (positions[at] < 0 || positions[at] >= shape_.num_positions)
            refuse("token " + to_string(at) + " of the step stands at position " + to_string(positions[at]) + "; positions are 0 to " +
                   to_string(shape_.num_positions - 1) + ", as [model] max_model_len or the model's context length says");
        if (writes && (slots[at] < -1 || slots[at] >= capacity_))
            refuse("token " + to_string(at) + " of the step has slot " + to_string(slots[at]) + "; slots are -1 to " + to_string(capacity_ - 1));
    }
}

void Decoder::check_inputs(int layer, const AttentionInputs &inputs) const {
    if (!inputs.query) refuse("query is null");
    const bool passed = kv_layers_.empty() || !kv_layers_[layer].is_written;
    if (passed && (!inputs.key || !inputs.value)) refuse("key or value are null, and layer " + to_string(layer) + " does not write to the KV pools");
}

void Decoder::start(const int64_t *token_ids, const int64_t *positions, const int64_t *slots, int num_tokens, const AttentionInputs &first) {
    const auto lock = alone(busy_);
    check_ready();
    check_tokens(token_ids, positions, slots, num_tokens);
    check_inputs(0, first);
    waiting_layer_ = -1; // until all of it is there
    reserve(num_tokens);
    residual_.reserve(size_t(num_tokens) * shape_.hidden_size);
    know_turns(int(*std::max_element(positions, positions + num_tokens)) + 1);
    token_ids_.assign(token_ids, token_ids + num_tokens);
    positions_.assign(positions, positions + num_tokens);
    if (slots) slots_.assign(slots, slots + num_tokens);
    num_tokens_ = num_tokens;
    Pass pass{};
    pass.beginning = &layers_[0];
    pass.kv = kv_layers_.empty() || !kv_layers_[0].is_written ? nullptr : &kv_layers_[0];
    pass.next = first;
    pass.num_rows = num_tokens;
    run(pass);
    waiting_layer_ = 0;
}

void Decoder::advance(int layer, const void *attended, const AttentionInputs &next) {
    const auto lock = alone(busy_);
    if (layer < 0 || layer != waiting_layer_ || layer + 1 >= shape_.num_layers)
        refuse("layer " + to_string(layer) + " is not the one whose attention is awaited, or it is the last");
    if (!attended) refuse("what attention gave is null");
    check_inputs(layer + 1, next);
    Pass pass{};
    pass.ending = &layers_[layer];
    pass.beginning = &layers_[layer + 1];
    pass.kv = kv_layers_.empty() || !kv_layers_[layer + 1].is_written ? nullptr : &kv_layers_[layer + 1];
    pass.attended = attended;
    pass.next = next;
    pass.num_rows = num_tokens_;
    run(pass);
    waiting_layer_ = layer + 1;
}

void Decoder::finish(const void *attended, float *hidden) {
    const auto lock = alone(busy_);
    if (waiting_layer_ != shape_.num_layers - 1) refuse("the last layer's attention is not awaited");
    if (!attended || !hidden) refuse("what attention gave, or the place for hidden states, is null");
    Pass pass{};
    pass.ending = &layers_.back();
    pass.attended = attended;
    pass.hidden = hidden;
    pass.num_rows = num_tokens_;
    run(pass);
    waiting_layer_ = -1;
}

void Decoder::logits(const float *hidden, int num_rows, float *to) {
    const auto lock = alone(busy_);
    check_ready();
    check_size("num_rows", num_rows, 1 << 24);
    if (!hidden || !to) refuse("hidden states, or the place for logits, are null");
    reserve(num_rows);
    Pass pass{};
    pass.for_logits = hidden;
    pass.logits = to;
    pass.num_rows = num_rows;
    run(pass);
}

void Decoder::run(Pass &pass) {
    pass.decoder = this;
    pool_->run(pool_, run_pass, &pass);
}

// Room for a pass over so many rows. What a step keeps from one pass to the next, its residual stream, is left alone.
void Decoder::reserve(int num_rows) {
    const int group = std::min(num_rows, max_group_rows);
    if (group == reserved_rows_) return;
    const int most_inputs = std::max({shape_.hidden_size, shape_.query_size(), shape_.padded_intermediate()});
    const size_t widest = size_t(most_inputs + block_depth - 1) / block_depth * block_depth;
    const size_t tile_rows = 16, row_bytes = widest * sizeof(float);
    const size_t rows = size_t(group + tile_rows - 1) / tile_rows * tile_rows;
    bool biased = false;
    size_t scratch = linear_.scratch_bytes(head_->matrix(), group);
    for (const DecoderLayer &layer : layers_) {
        for (const Weights *weights : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
            scratch = std::max(scratch, linear_.scratch_bytes((*weights)->matrix(), group));
        biased = biased || !layer.gate_up_bias.empty();
    }
    qkv_.reserve(size_t(group) * shape_.qkv_size());
    gated_.reserve(size_t(group) * shape_.padded_intermediate());
    if (biased) gate_up_.reserve(size_t(group) * 2 * shape_.padded_intermediate());
    activations_.reserve(rows * row_bytes);
    for (int thread = 0; thread < pool_->num_threads; thread++) {
        own_activations_[thread].reserve(tile_rows * row_bytes);
        own_row_[thread].reserve(widest);
        scratch_[thread].reserve(scratch);
    }
    reserved_rows_ = group;
}

// Made as far as sequences grow: a model may have room for many more positions than anybody asks for.
void Decoder::know_turns(int num_positions) {
    constexpr int at_once = 256;
    const int half = shape_.head_dim / 2, known = int(turns_.size() / size_t(shape_.head_dim));
    if (num_positions <= known) return;
    const int end = (num_positions + at_once - 1) / at_once * at_once;
    turns_.resize(size_t(end) * shape_.head_dim);
    for (int position = known; position < end; position++) {
        float *turns = &turns_[size_t(position) * shape_.head_dim];
        for (int at = 0; at < half; at++) {
            turns[at] = float(std::cos(position * frequencies_[at]) * turn_scale_);
            turns[half + at] = float(std::sin(position * frequencies_[at]) * turn_scale_);
        }
    }
}

std::array<double, num_phases> Decoder::take_seconds() {
    const auto lock = alone(busy_);
    const auto seconds = seconds_;
    seconds_.fill(0);
    return seconds;
}

} // namespace corekit
