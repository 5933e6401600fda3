#include "llama/packed_matrix.h"

#include <atomic>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <string>

#include "linear/stored.h"

namespace corekit {

namespace {

[[noreturn]] void refuse(const std::string &what) { throw std::invalid_argument(what); }

constexpr size_t alignment = 64, readable_behind = 4096;

struct Packing {
    const Matrix *matrix;
    uint8_t *panels;
    const std::vector<StoredRows> *parts;
    bool interleaved;
    std::atomic<bool> fits{true};
};

void pack_share(void *arg, int thread, int num_threads) {
    Packing &packing = *static_cast<Packing *>(arg);
    const int64_t count = packing.matrix->num_panels();
    const int first = int(count * thread / num_threads), end = int(count * (thread + 1) / num_threads);
    const int num_parts = int(packing.parts->size());
    if (first < end && !pack_panels(*packing.matrix, packing.panels, packing.parts->data(), num_parts, packing.interleaved, first, end)) packing.fits = false;
}

} // namespace

PackedMatrix::PackedMatrix(Format format, int num_outputs, int num_inputs) : matrix_{format, num_outputs, num_inputs, nullptr} {
    if (num_outputs < 1 || num_inputs < 1) refuse("a matrix has at least one output and one input");
    const size_t size = (matrix_.num_bytes() + readable_behind + alignment - 1) / alignment * alignment;
    memory_.reset(static_cast<uint8_t *>(std::aligned_alloc(alignment, size)));
    if (!memory_) throw std::bad_alloc();
    matrix_.panels = memory_.get();
}

void PackedMatrix::pack(corekit_pool *pool, const std::vector<StoredRows> &parts, bool interleaved) {
    int64_t num_rows = 0;
    for (const StoredRows &part : parts) {
        if (!can_pack(part.type, matrix_.format)) refuse("the matrix's format cannot hold what the file has");
        const size_t row_bytes = stored_row_bytes(part.type, matrix_.num_inputs);
        if (!part.rows || part.num_rows < 1) refuse("a part without rows");
        if (!row_bytes || part.row_bytes < row_bytes)
            refuse("rows of " + std::to_string(part.row_bytes) + " bytes do not hold " + std::to_string(matrix_.num_inputs) + " inputs");
        num_rows += part.num_rows;
    }
    if (interleaved && (parts.size() != 2 || parts[0].num_rows != parts[1].num_rows)) refuse("two parts of equal size are interleaved");
    const int64_t expected = interleaved ? interleaved_outputs(parts[0].num_rows) : num_rows;
    if (parts.empty() || expected != matrix_.num_outputs)
        refuse("the parts have " + std::to_string(expected) + " outputs, the matrix " + std::to_string(matrix_.num_outputs));
    Packing packing{&matrix_, memory_.get(), &parts, interleaved};
    if (pool) pool->run(pool, pack_share, &packing);
    else pack_share(&packing, 0, 1);
    if (!packing.fits) refuse("a block's scale is not finite or too large for a weight. The file is damaged");
}

size_t stored_row_bytes(Stored type, int num_inputs) {
    if (stored_in_blocks(type) && num_inputs % block_depth) return 0;
    return size_t(num_inputs) * stored_block_bytes(type) / block_depth;
}

} // namespace corekit
