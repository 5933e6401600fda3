// What a step needs to know before its first layer: rows, tables and slots, checked and copied, and the list of work for each kind of
// layer. Knows no tensor and no thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/kernels.h"

namespace corekit {

// Layers of equal views share a list of work.
struct View {
    int num_kv_heads, group, window, chunk;
    bool operator==(const View &other) const {
        return num_kv_heads == other.num_kv_heads && group == other.group && window == other.window && chunk == other.chunk;
    }
};

// One tile against partitions [first_partition, end_partition), for each kv head.
struct Work {
    int row, first_token, num_queries, first_position;
    int first_partition, end_partition;
    int part; // the number of its state among those that wait to be joined; -1: it is the whole tile
};

// A tile whose partitions were computed apart: their states are part, part + 1, ...
struct Split {
    int first_token, num_queries;
    int part, num_parts;
};

struct WorkList {
    std::vector<Work> works; // long ones first
    std::vector<Split> splits;
    int num_parts = 0;
    int part_queries = 0; // at most, of a part
};

// Addresses of int64 numbers as the step's tensors have them.
struct StepTables {
    int num_rows, num_tokens;
    const int64_t *starts;   // [num_rows + 1]
    const int64_t *seq_lens; // [num_rows]
    const int64_t *blocks;   // [num_rows, width]
    int64_t width, row_stride, column_stride;
    const int64_t *slots; // [num_tokens]
};

struct Limits {
    int block_size;
    int64_t num_blocks; // the null block included
    int num_threads;
};

int tile_queries(int group);

class Plan {
public:
    // Throws std::invalid_argument for tables that do not fit each other or the pool.
    Plan(const StepTables &step, const Limits &limits, const std::vector<View> &views);

    const WorkList &work(size_t view) const { return lists_[view]; }
    size_t num_views() const { return lists_.size(); }
    const int32_t *blocks(int row) const { return blocks_.data() + size_t(row) * width_; }
    int64_t slot(int token) const { return slots_[token]; }
    int num_tokens() const { return num_tokens_; }
    int first_padding() const { return starts_.back(); } // tokens from here on belong to no row

private:
    void copy_rows(const StepTables &step, const Limits &limits);
    void copy_blocks(const StepTables &step, const Limits &limits);
    WorkList list(const View &view, const Limits &limits) const;

    int num_tokens_;
    size_t width_ = 0;
    std::vector<int> starts_, seq_lens_;
    std::vector<int32_t> blocks_;
    std::vector<int64_t> slots_;
    std::vector<WorkList> lists_;
};

} // namespace corekit
