// Between two barriers each thread has its share, of rows where rows are prepared and of panels where matrices are multiplied. A
// group of one row is prepared by every thread for itself, which is quicker than to wait for another.
#include "llama/pass.h"

#include <chrono>
#include <cstring>

namespace corekit {

class PassThread {
public:
    PassThread(Pass &pass, int thread, int num_threads)
        : pass_(pass), decoder_(*pass.decoder), shape_(decoder_.shape_), elementwise_(decoder_.elementwise_), thread_(thread), num_threads_(num_threads),
          row_(decoder_.own_row_[thread].at()), since_(std::chrono::steady_clock::now()) {}

    void run() {
        for (first_ = 0; first_ < pass_.num_rows; first_ += max_group_rows) {
            count_ = pass_.num_rows - first_ < max_group_rows ? pass_.num_rows - first_ : max_group_rows;
            if (pass_.for_logits) {
                head();
                continue;
            }
            if (pass_.ending) end(*pass_.ending);
            else embed();
            if (pass_.beginning) begin(*pass_.beginning);
            else final_norm();
        }
    }

private:
    template <class Work> void share(int count, Work work) {
        const int first = int(int64_t(count) * thread_ / num_threads_), end = int(int64_t(count) * (thread_ + 1) / num_threads_);
        for (int at = first; at < end; at++) work(at);
    }

    void barrier() { decoder_.pool_->barrier(decoder_.pool_); }

    void spent(Phase phase) {
        if (thread_ != 0) return;
        const auto now = std::chrono::steady_clock::now();
        decoder_.seconds_[int(phase)] += std::chrono::duration<double>(now - since_).count();
        since_ = now;
    }

    float *residual(int row) { return decoder_.residual_.at(size_t(first_ + row) * shape_.hidden_size); }

    const float *normed(int row, const Floats &weight) {
        elementwise_.rms_norm(residual(row), weight.data(), shape_.hidden_size, shape_.norm_epsilon, row_);
        return row_;
    }

    // Rows of the group for a product with `matrix`; source: row -> its floats.
    template <class Source> Activations prepare(const Matrix &matrix, Source source) {
        const bool alone = count_ == 1;
        const Activations to = lay_out(matrix, alone ? decoder_.own_activations_[thread_].at() : decoder_.activations_.at());
        if (alone) {
            decoder_.linear_.prepare(source(0), matrix.num_inputs, to, 0);
        } else {
            share(count_, [&](int row) { decoder_.linear_.prepare(source(row), matrix.num_inputs, to, row); });
            barrier();
        }
        return to;
    }

    // One form at a time is in use, so all lie in the same memory.
    Activations lay_out(const Matrix &matrix, uint8_t *memory) {
        const size_t inputs = size_t(matrix.num_blocks()) * block_depth, rows = size_t(count_);
        Activations to{decoder_.linear_.wants(matrix.format, pass_.num_rows), int(inputs), nullptr, nullptr, nullptr, nullptr};
        switch (to.prepared) {
        case Prepared::int8:
            to.blocks = reinterpret_cast<Int8Block *>(memory);
            to.scaled_sums = reinterpret_cast<float *>(to.blocks + rows * inputs / block_depth);
            break;
        case Prepared::bf16: to.halves = reinterpret_cast<uint16_t *>(memory); break;
        case Prepared::f32: to.floats = reinterpret_cast<float *>(memory); break;
        }
        return to;
    }

    void multiply(const Weights &weights, const Activations &rows, const Output &output) {
        const Matrix &matrix = weights->matrix();
        int first, end;
        share_panels(matrix.num_panels(), output.kind == Output::Kind::silu_mul, thread_, num_threads_, &first, &end);
        if (first < end) decoder_.linear_.multiply(matrix, rows, count_, first, end, output, decoder_.scratch_[thread_].at());
        barrier();
    }

    static const float *or_null(const Floats &floats) { return floats.empty() ? nullptr : floats.data(); }

    void embed() {
        const Matrix &embedding = decoder_.embedding_->matrix();
        share(count_, [&](int row) { unpack_row(embedding, decoder_.token_ids_[first_ + row], residual(row)); });
        barrier();
        spent(Phase::embed);
    }

    // Output projection and the layer's second half, added to the residual stream.
    void end(const DecoderLayer &layer) {
        const size_t hidden = size_t(shape_.hidden_size);
        Activations rows = prepare(layer.output->matrix(), [&](int row) { return attended(row); });
        multiply(layer.output, rows, {Output::Kind::add, residual(0), hidden, or_null(layer.output_bias)});
        spent(Phase::output);
        rows = prepare(layer.gate_up->matrix(), [&](int row) { return normed(row, layer.mlp_norm); });
        const size_t width = size_t(shape_.padded_intermediate());
        if (layer.gate_up_bias.empty()) multiply(layer.gate_up, rows, {Output::Kind::silu_mul, decoder_.gated_.at(), width, nullptr});
        else multiply(layer.gate_up, rows, {Output::Kind::store, decoder_.gate_up_.at(), 2 * width, layer.gate_up_bias.data()});
        spent(Phase::gate_up);
        rows = prepare(layer.down->matrix(), [&](int row) { return gated(layer, row); });
        multiply(layer.down, rows, {Output::Kind::add, residual(0), hidden, or_null(layer.down_bias)});
        spent(Phase::down);
    }

    const float *attended(int row) {
        const size_t at = size_t(first_ + row) * shape_.query_size();
        if (!shape_.is_bf16) return static_cast<const float *>(pass_.attended) + at;
        elementwise_.widen(static_cast<const uint16_t *>(pass_.attended) + at, shape_.query_size(), row_);
        return row_;
    }

    const float *gated(const DecoderLayer &layer, int row) {
        const size_t width = size_t(shape_.padded_intermediate());
        if (layer.gate_up_bias.empty()) return decoder_.gated_.at(row * width);
        elementwise_.silu_mul(decoder_.gate_up_.at(row * 2 * width), shape_.intermediate_size, row_);
        return row_;
    }

    // Norm, query, key and value with their rotation, and where attention finds them.
    void begin(const DecoderLayer &layer) {
        const int num_heads = shape_.num_projected_heads();
        if (pass_.kv) share(count_ * num_heads, [&](int at) { expect_head_of(at / num_heads, at % num_heads); });
        const Activations rows = prepare(layer.qkv->matrix(), [&](int row) { return normed(row, layer.input_norm); });
        multiply(layer.qkv, rows, {Output::Kind::store, decoder_.qkv_.at(), size_t(shape_.qkv_size()), or_null(layer.qkv_bias)});
        spent(Phase::qkv);
        share(count_ * num_heads, [&](int at) { finish_head(layer, at / num_heads, at % num_heads); });
        spent(Phase::heads);
    }

    void expect_head_of(int row, int head) {
        const int64_t slot = decoder_.slots_[first_ + row], block = slot / decoder_.block_size_;
        const int num_turned = shape_.num_heads + shape_.num_kv_heads, token = int(slot % decoder_.block_size_);
        if (head < shape_.num_heads || slot < 0) return;
        const KvPlace &place = head < num_turned ? pass_.kv->key : pass_.kv->value;
        const int kv_head = (head - shape_.num_heads) % shape_.num_kv_heads;
        if (pass_.kv->is_bf16) expect_head<uint16_t>(place, shape_.head_dim, block, token, kv_head);
        else expect_head<float>(place, shape_.head_dim, block, token, kv_head);
    }

    void finish_head(const DecoderLayer &layer, int row, int head) {
        const int head_dim = shape_.head_dim, num_turned = shape_.num_heads + shape_.num_kv_heads;
        float *values = decoder_.qkv_.at(size_t(row) * shape_.qkv_size() + size_t(head) * head_dim);
        const Floats &norm = head < shape_.num_heads ? layer.query_norm : layer.key_norm;
        if (head < num_turned && !norm.empty()) elementwise_.rms_norm(values, norm.data(), head_dim, shape_.norm_epsilon, values);
        if (head < num_turned && layer.rotates) elementwise_.rotate(values, &decoder_.turns_[size_t(decoder_.positions_[first_ + row]) * head_dim], head_dim);
        const size_t token = size_t(first_ + row);
        if (head < shape_.num_heads) return pass_head(values, pass_.next.query, token * shape_.num_heads + head);
        const bool is_key = head < num_turned;
        const int kv_head = is_key ? head - shape_.num_heads : head - num_turned;
        if (!pass_.kv) return pass_head(values, is_key ? pass_.next.key : pass_.next.value, token * shape_.num_kv_heads + kv_head);
        const int64_t slot = decoder_.slots_[token];
        if (slot >= 0) cache_head(values, is_key ? pass_.kv->key : pass_.kv->value, slot, kv_head);
    }

    void pass_head(const float *values, void *to, size_t at) {
        const size_t head_dim = size_t(shape_.head_dim);
        if (shape_.is_bf16) elementwise_.narrow(values, shape_.head_dim, static_cast<uint16_t *>(to) + at * head_dim);
        else std::memcpy(static_cast<float *>(to) + at * head_dim, values, head_dim * sizeof(float));
    }

    void cache_head(const float *values, const KvPlace &place, int64_t slot, int head) {
        const int64_t block = slot / decoder_.block_size_;
        const int token = int(slot % decoder_.block_size_);
        if (!pass_.kv->is_bf16) return write_head(place, values, shape_.head_dim, block, token, head);
        uint16_t *halves = reinterpret_cast<uint16_t *>(row_);
        elementwise_.narrow(values, shape_.head_dim, halves);
        write_head(place, halves, shape_.head_dim, block, token, head);
    }

    void final_norm() {
        const Floats &weight = decoder_.final_norm_;
        share(count_, [&](int row) {
            float *to = pass_.hidden + size_t(first_ + row) * shape_.hidden_size;
            elementwise_.rms_norm(residual(row), weight.data(), shape_.hidden_size, shape_.norm_epsilon, to);
        });
    }

    void head() {
        const Weights &weights = decoder_.head_;
        const Activations rows = prepare(weights->matrix(), [&](int row) { return pass_.for_logits + size_t(first_ + row) * shape_.hidden_size; });
        multiply(weights, rows, {Output::Kind::store, pass_.logits + size_t(first_) * shape_.vocab_size, size_t(shape_.vocab_size), nullptr});
        spent(Phase::head);
    }

    Pass &pass_;
    Decoder &decoder_;
    const DecoderShape &shape_;
    const ElementwiseKernels &elementwise_;
    const int thread_, num_threads_;
    int first_ = 0, count_ = 0; // the group of rows
    float *const row_;          // of this thread alone
    std::chrono::steady_clock::time_point since_;
};

void run_pass(void *arg, int thread, int num_threads) { PassThread(*static_cast<Pass *>(arg), thread, num_threads).run(); }

} // namespace corekit
