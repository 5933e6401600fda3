#include "attention/paged.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <string>

namespace corekit {

namespace {

[[noreturn]] void refuse(const std::string &why) { throw std::invalid_argument(why); }

size_t float_bytes(size_t count) { return (count * 4 + 63) / 64 * 64; }

} // namespace

PagedAttention::PagedAttention(corekit_pool *pool, InstructionSet set, Number cache, int block_size, int64_t num_blocks, int64_t num_host_blocks)
    : pool_(pool), kernels_(attention_kernels(set)), cache_(cache), limits_{block_size, num_blocks, pool ? pool->num_threads : 0},
      num_host_blocks_(num_host_blocks) {
    if (!pool) refuse("the pool's address is null");
    if (pool->abi != COREKIT_POOL_ABI)
        refuse("the pool has ABI " + std::to_string(pool->abi) + ", this module was built for " + std::to_string(COREKIT_POOL_ABI));
    if (block_size < half_length || block_size % half_length || block_size > 4096)
        refuse("block_size " + std::to_string(block_size) + " is not a multiple of 8 up to 4096");
    if (num_blocks < 1 || num_blocks > INT32_MAX || num_host_blocks < 0) refuse("a pool needs 1 to 2^31 - 1 blocks");
    scratch_ = std::vector<Buffer<uint8_t>>(size_t(pool->num_threads));
}

void PagedAttention::measure(Shape *shape) {
    const auto within = [](const char *what, int64_t value, int64_t least, int64_t most) {
        if (value < least || value > most)
            refuse(std::string(what) + " is " + std::to_string(value) + "; " + std::to_string(least) + " to " + std::to_string(most) + " are possible");
    };
    within("num_kv_heads", shape->num_kv_heads, 1, 4096);
    within("heads of one kv head", shape->group, 1, 4096);
    within("key_dim", shape->key_dim, 1, max_dim);
    within("value_dim", shape->value_dim, 1, max_dim);
    within("window", shape->window, 0, INT32_MAX);
    within("chunk", shape->chunk, 0, INT32_MAX);
    const int numbers = shape->cache == Number::bf16 ? 2 : 1;
    if (shape->key_dim % numbers) refuse("key_dim " + std::to_string(shape->key_dim) + " is odd; a bfloat16 cache holds pairs of dims");
    shape->key_words = shape->key_dim / numbers;
    shape->value_lanes = (shape->value_dim + 15) / 16 * 16;
    shape->values_offset = size_t(shape->block_size) * shape->key_words * 4;
    shape->head_bytes = shape->values_offset + size_t(shape->block_size / numbers) * shape->value_lanes * 4;
    shape->block_bytes = shape->head_bytes * shape->num_kv_heads;
}

void PagedAttention::add_layer(const Layer &layer) {
    if (!layer.device || (num_host_blocks_ && layer.owns_cache && !layer.host)) refuse("a layer's pool has a null address");
    std::lock_guard<std::mutex> lock(turn_);
    const View view{layer.shape.num_kv_heads, layer.shape.group, layer.shape.window, layer.shape.chunk};
    const auto found = std::find(views_.begin(), views_.end(), view);
    view_of_.push_back(size_t(found - views_.begin()));
    if (found == views_.end()) views_.push_back(view);
    layers_.push_back(layer);
}

const Layer &PagedAttention::layer(size_t at) const {
    if (at >= layers_.size()) refuse("layer " + std::to_string(at) + "; there are " + std::to_string(layers_.size()));
    return layers_[at];
}

std::shared_ptr<Plan> PagedAttention::plan(const StepTables &step) const { return std::make_shared<Plan>(step, limits_, views_); }

struct PagedAttention::Running {
    PagedAttention *self;
    const Layer *layer;
    const Plan *plan;
    const WorkList *list;
    const Inputs *inputs;
    float *states;      // of parts: [part, kv head, queries of the largest, state_floats]
    size_t part_floats; // of one part and kv head
    std::atomic<size_t> next_work{0}, next_split{0};
};

void PagedAttention::run(size_t at, const Plan &plan, const Inputs &inputs) {
    std::lock_guard<std::mutex> lock(turn_);
    const Layer &asked = layer(at);
    const Shape &shape = asked.shape;
    if (view_of_[at] >= plan.num_views()) refuse("run: the plan was made before layer " + std::to_string(at) + " was added");
    if (!plan.num_tokens()) return;
    if (!inputs.query.at || !inputs.out) refuse("run: the address of query or out is null");
    if (!inputs.key.at != !inputs.value.at) refuse("run: key and value come together or not at all");
    if (inputs.key.at && !asked.owns_cache) refuse("run: layer " + std::to_string(at) + " reads another layer's cache and writes none");
    if (asked.has_sinks != (inputs.sinks != nullptr))
        refuse("layer " + std::to_string(at) + " was declared " + (asked.has_sinks ? "with" : "without") + " sinks, but run got " +
               (inputs.sinks ? "some" : "none"));
    Running running;
    running.self = this;
    running.layer = &asked;
    running.plan = &plan;
    running.list = &plan.work(view_of_[at]);
    running.inputs = &inputs;
    const size_t tile_numbers = size_t(tile_queries(shape.group)) * shape.group;
    running.part_floats = size_t(running.list->part_queries) * shape.group * state_floats(shape);
    states_.reserve(running.part_floats * size_t(running.list->num_parts) * size_t(shape.num_kv_heads));
    running.states = states_.at();
    const size_t tile_bytes = float_bytes(tile_numbers * shape.key_dim) + tile_numbers * state_floats(shape) * 4;
    for (Buffer<uint8_t> &scratch : scratch_) scratch.reserve(scratch_bytes(shape) + tile_bytes);
    const size_t row_bytes = size_t(asked.num_heads) * shape.value_dim * (inputs.query.number == Number::bf16 ? 2 : 4);
    const size_t padding = size_t(plan.first_padding()) * row_bytes;
    std::memset(static_cast<uint8_t *>(inputs.out) + padding, 0, size_t(plan.num_tokens()) * row_bytes - padding);
    pool_->run(pool_, &PagedAttention::run_on, &running);
}

void PagedAttention::run_on(void *argument, int thread, int num_threads) {
    Running &running = *static_cast<Running *>(argument);
    PagedAttention &self = *running.self;
    const Shape &shape = running.layer->shape;
    if (running.inputs->key.at) {
        const int64_t count = running.plan->num_tokens();
        for (int token = int(count * thread / num_threads); token < int(count * (thread + 1) / num_threads); token++) {
            const int64_t slot = running.plan->slot(token);
            if (slot < 0) continue;
            uint8_t *block = running.layer->device + size_t(slot / shape.block_size) * shape.block_bytes;
            self.kernels_.write(shape, running.inputs->key, running.inputs->value, token, block, int(slot % shape.block_size));
        }
        self.pool_->barrier(self.pool_);
    }
    const size_t heads = size_t(shape.num_kv_heads);
    const size_t count = running.list->works.size() * heads;
    for (size_t at = running.next_work.fetch_add(1), next; at < count; at = next) {
        next = running.next_work.fetch_add(1); // known early, so that its keys can be fetched
        attend(running, at, next, thread);
    }
    if (running.list->splits.empty()) return;
    self.pool_->barrier(self.pool_);
    for (size_t at; (at = running.next_split.fetch_add(1)) < running.list->splits.size() * heads;)
        join(running, running.list->splits[at / heads], int(at % heads), thread);
}

// Of the piece of work with this number, or nothing.
Stretch PagedAttention::stretch_of(const Running &running, size_t at, int partition) {
    const Shape &shape = running.layer->shape;
    const size_t heads = size_t(shape.num_kv_heads);
    if (at >= running.list->works.size() * heads) return {};
    const Work &work = running.list->works[at / heads];
    if (partition < 0) partition = work.first_partition;
    const int begin = partition * partition_length, end = work.first_position + work.num_queries;
    return {running.layer->device + at % heads * shape.head_bytes, running.plan->blocks(work.row), begin, std::min(begin + partition_length, end)};
}

void PagedAttention::attend(const Running &running, size_t at, size_t next, int thread) {
    PagedAttention &self = *running.self;
    const Shape &shape = running.layer->shape;
    const int head = int(at % size_t(shape.num_kv_heads));
    const Work &work = running.list->works[at / size_t(shape.num_kv_heads)];
    const int numbers = work.num_queries * shape.group;
    uint8_t *scratch = self.scratch_[size_t(thread)].at();
    float *queries = reinterpret_cast<float *>(scratch + scratch_bytes(shape));
    float *states = queries + float_bytes(size_t(numbers) * shape.key_dim) / sizeof(float);
    if (work.part >= 0) states = running.states + (size_t(work.part) * shape.num_kv_heads + head) * running.part_floats;
    self.kernels_.prepare(shape, running.inputs->query, work.first_token, work.num_queries, head * shape.group, queries);
    self.kernels_.clear(shape, states, numbers);
    Tile tile{stretch_of(running, at, work.first_partition), queries, work.first_position, work.num_queries};
    for (int partition = work.first_partition; partition < work.end_partition; partition++) {
        const bool last = partition + 1 == work.end_partition;
        const Stretch coming = last ? stretch_of(running, next, -1) : stretch_of(running, at, partition + 1);
        self.kernels_.attend(shape, tile, coming, states, scratch);
        tile.stretch = coming;
    }
    if (work.part >= 0) return;
    self.kernels_.finish(shape, states, running.inputs->sinks, work.first_token, work.num_queries, head * shape.group, running.layer->num_heads,
                         running.inputs->out, running.inputs->query.number);
}

void PagedAttention::join(const Running &running, const Split &split, int head, int thread) {
    PagedAttention &self = *running.self;
    const Shape &shape = running.layer->shape;
    const int numbers = split.num_queries * shape.group;
    float *states = reinterpret_cast<float *>(self.scratch_[size_t(thread)].at());
    self.kernels_.clear(shape, states, numbers);
    for (int part = split.part; part < split.part + split.num_parts; part++)
        self.kernels_.join(shape, states, running.states + (size_t(part) * shape.num_kv_heads + head) * running.part_floats, numbers);
    self.kernels_.finish(shape, states, running.inputs->sinks, split.first_token, split.num_queries, head * shape.group, running.layer->num_heads,
                         running.inputs->out, running.inputs->query.number);
}

void PagedAttention::copy(const std::vector<BlockCopy> &copies) {
    for (const BlockCopy &copy : copies) {
        for (const auto &[block, on_host] : {std::pair{copy.source, copy.source_on_host}, std::pair{copy.target, copy.target_on_host}}) {
            const int64_t count = on_host ? num_host_blocks_ : limits_.num_blocks;
            if (block < 0 || block >= count)
                refuse("copy_blocks: block " + std::to_string(block) + (on_host ? " on the host" : "") + "; there are " + std::to_string(count));
        }
    }
    struct Copying {
        const std::vector<Layer> *layers;
        const std::vector<BlockCopy> *copies;
    } copying{&layers_, &copies};
    std::lock_guard<std::mutex> lock(turn_);
    // Layers are independent, so each is one thread's, and its copies keep their order.
    pool_->run(
        pool_,
        [](void *argument, int thread, int num_threads) {
            const Copying &all = *static_cast<Copying *>(argument);
            for (size_t at = size_t(thread); at < all.layers->size(); at += size_t(num_threads)) {
                const Layer &layer = (*all.layers)[at];
                if (!layer.owns_cache) continue;
                const size_t bytes = layer.shape.block_bytes;
                for (const BlockCopy &copy : *all.copies)
                    std::memmove((copy.target_on_host ? layer.host : layer.device) + size_t(copy.target) * bytes,
                                 (copy.source_on_host ? layer.host : layer.device) + size_t(copy.source) * bytes, bytes);
            }
        },
        &copying);
}

} // namespace corekit
