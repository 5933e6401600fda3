// Memory of one packed matrix, filled by the threads of a pool straight from what a file has.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "corekit/pool.h"
#include "linear/matrix.h"

namespace corekit {

class PackedMatrix {
public:
    // Panels hold nothing yet. Throws std::bad_alloc.
    PackedMatrix(Format format, int num_outputs, int num_inputs);

    // See pack_panels. pool: null packs on the calling thread. Throws std::invalid_argument where parts do not fit the matrix or its format cannot hold them.
    void pack(corekit_pool *pool, const std::vector<StoredRows> &parts, bool interleaved);
    const Matrix &matrix() const { return matrix_; }

private:
    struct Free {
        void operator()(uint8_t *memory) const { std::free(memory); }
    };
    std::unique_ptr<uint8_t, Free> memory_;
    Matrix matrix_;
};

// Bytes of a row of so many weights; 0: they are no whole number of blocks.
size_t stored_row_bytes(Stored type, int num_inputs);

// Outputs of a matrix of two interleaved parts of so many rows each: both are filled up to whole panels.
inline int interleaved_outputs(int num_rows) { return 2 * ((num_rows + panel_width - 1) / panel_width * panel_width); }

} // namespace corekit
