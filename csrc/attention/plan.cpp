#include "attention/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace corekit {

namespace {

constexpr int tile_rows = 96; // queries times heads that share one reading of keys and values
constexpr int64_t max_length = int64_t(1) << 30;

[[noreturn]] void refuse(const std::string &why) { throw std::invalid_argument(why); }

} // namespace

int tile_queries(int group) { return group < tile_rows ? tile_rows / group : 1; }

Plan::Plan(const StepTables &step, const Limits &limits, const std::vector<View> &views) : num_tokens_(step.num_tokens) {
    if (step.num_rows < 0 || step.num_tokens < 0 || step.width < 0) refuse("plan: a negative number of rows, tokens or columns");
    const bool rows = step.num_rows > 0, columns = step.width > 0, tokens = step.num_tokens > 0;
    if (!step.starts || (rows && !step.seq_lens) || (rows && columns && !step.blocks) || (tokens && !step.slots)) refuse("plan: an address is null");
    copy_rows(step, limits);
    copy_blocks(step, limits);
    slots_.assign(step.slots, step.slots + step.num_tokens);
    for (int token = 0; token < step.num_tokens; token++)
        if (slots_[token] < -1 || slots_[token] >= limits.num_blocks * limits.block_size)
            refuse("plan: slot " + std::to_string(slots_[token]) + " of token " + std::to_string(token) + "; the pool has slots below " +
                   std::to_string(limits.num_blocks * limits.block_size));
    for (const View &view : views) lists_.push_back(list(view, limits));
}

void Plan::copy_rows(const StepTables &step, const Limits &limits) {
    starts_.reserve(size_t(step.num_rows) + 1);
    for (int row = 0; row <= step.num_rows; row++) {
        const int64_t start = step.starts[row];
        if (row == 0 ? start != 0 : start < starts_.back() || start > step.num_tokens)
            refuse("plan: query_start_loc[" + std::to_string(row) + "] is " + std::to_string(start) + "; it begins at 0 and rises to the number of tokens, " +
                   std::to_string(step.num_tokens));
        starts_.push_back(int(start));
    }
    seq_lens_.reserve(size_t(step.num_rows));
    for (int row = 0; row < step.num_rows; row++) {
        const int64_t length = step.seq_lens[row];
        if (length < 0 || length > max_length || length > step.width * limits.block_size)
            refuse("plan: row " + std::to_string(row) + " has " + std::to_string(length) + " positions; its table holds " +
                   std::to_string(step.width * limits.block_size));
        seq_lens_.push_back(int(length));
    }
}

// Only blocks that a row has positions in; the rest of a table is padding and may be anything.
void Plan::copy_blocks(const StepTables &step, const Limits &limits) {
    for (int length : seq_lens_) width_ = std::max(width_, size_t((length + limits.block_size - 1) / limits.block_size));
    blocks_.assign(width_ * seq_lens_.size(), 0);
    for (int row = 0; row < step.num_rows; row++) {
        const int count = (seq_lens_[row] + limits.block_size - 1) / limits.block_size;
        for (int at = 0; at < count; at++) {
            const int64_t block = step.blocks[row * step.row_stride + at * step.column_stride];
            if (block < 0 || block >= limits.num_blocks)
                refuse("plan: block " + std::to_string(block) + " in the table of row " + std::to_string(row) + "; the pool has blocks 0 to " +
                       std::to_string(limits.num_blocks - 1));
            blocks_[row * width_ + at] = int32_t(block);
        }
    }
}

WorkList Plan::list(const View &view, const Limits &limits) const {
    Shape sees{};
    sees.window = view.window;
    sees.chunk = view.chunk;
    WorkList made;
    for (int row = 0; row < int(seq_lens_.size()); row++) {
        const int count = starts_[row + 1] - starts_[row], at_once = tile_queries(view.group);
        for (int first = 0; first < count; first += at_once) {
            const int num_queries = std::min(at_once, count - first), position = seq_lens_[row] - count + first, end = position + num_queries;
            const int low = position < 0 ? 0 : first_seen(sees, position) / partition_length;
            made.works.push_back({row, starts_[row] + first, num_queries, position, low, std::max(low, (end + partition_length - 1) / partition_length), -1});
        }
    }
    // Partitions of one token's query go to any thread, those of a chunk only where there are too few tiles to keep all threads busy.
    const bool few = made.works.size() * size_t(view.num_kv_heads) < size_t(limits.num_threads) * 4;
    std::vector<Work> parts;
    parts.reserve(made.works.size());
    for (auto work = made.works.rbegin(); work != made.works.rend(); ++work) {
        const int num_parts = work->end_partition - work->first_partition;
        if (num_parts < 2 || !(few || work->num_queries == 1)) {
            parts.push_back(*work);
            continue;
        }
        made.splits.push_back({work->first_token, work->num_queries, made.num_parts, num_parts});
        made.part_queries = std::max(made.part_queries, work->num_queries);
        for (int at = 0; at < num_parts; at++) {
            Work part = *work;
            part.first_partition += at;
            part.end_partition = part.first_partition + 1;
            part.part = made.num_parts++;
            parts.push_back(part);
        }
    }
    made.works = std::move(parts);
    return made;
}

} // namespace corekit
