// Attention of a step's tokens over block tables, on the threads of a pool. Knows addresses, shapes and plans; no tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "attention/kernels.h"
#include "attention/plan.h"
#include "corekit/pool.h"
#include "simd/buffer.h"

namespace corekit {

struct Layer {
    Shape shape;
    int num_heads;
    bool has_sinks;
    bool owns_cache;
    uint8_t *device, *host; // block 0 of its pools, or of those of the layer that it reads
};

// One layer's tensors. Rows of null addresses: nothing is written.
struct Inputs {
    Rows query, key, value;
    const float *sinks;
    void *out; // [tokens, num_heads, value_dim] of the query's numbers
};

struct BlockCopy {
    int64_t source, source_on_host, target, target_on_host;
};

// Calls may come from any thread; they take turns.
class PagedAttention {
public:
    PagedAttention(corekit_pool *pool, InstructionSet set, Number cache, int block_size, int64_t num_blocks, int64_t num_host_blocks);

    // The shape's sizes in bytes, from what it says of dims and heads; throws std::invalid_argument for what kernels cannot do.
    static void measure(Shape *shape);
    void add_layer(const Layer &layer);
    std::shared_ptr<Plan> plan(const StepTables &step) const;
    // Writes, then attends. Throws std::invalid_argument for arguments that do not fit the layer.
    void run(size_t layer, const Plan &plan, const Inputs &inputs);
    // In this order, in every layer that has a cache of its own.
    void copy(const std::vector<BlockCopy> &copies);

    const Layer &layer(size_t at) const;
    Number cache() const { return cache_; }
    int block_size() const { return limits_.block_size; }
    int64_t num_blocks() const { return limits_.num_blocks; }
    int64_t num_host_blocks() const { return num_host_blocks_; }

private:
    struct Running;
    static void run_on(void *running, int thread, int num_threads);
    static Stretch stretch_of(const Running &running, size_t at, int partition);
    static void attend(const Running &running, size_t at, size_t next, int thread);
    static void join(const Running &running, const Split &split, int head, int thread);

    corekit_pool *const pool_;
    const AttentionKernels &kernels_;
    const Number cache_;
    const Limits limits_;
    const int64_t num_host_blocks_;
    std::vector<Layer> layers_;
    std::vector<View> views_;
    std::vector<size_t> view_of_;
    std::mutex turn_;
    std::vector<Buffer<uint8_t>> scratch_; // of each thread
    Buffer<float> states_;                 // of parts of tiles
};

} // namespace corekit
