// Which tile computes what: rows in tiles as even as can be, panels in streams that each walk through one part of the range.
#include "linear/levels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

constexpr int max_products = 2 * 32 * panel_width; // of a tile for gates and one for ups: sums fit 32 registers
constexpr size_t chunk_bytes = 512 * 1024;         // rows that stay in the second cache while all panels pass

struct Product {
    const Matrix &matrix;
    const Activations &rows;
    const Output &output;
    TileShapes shapes;
    int unit; // panels that finish together
    int first_row, num_rows;
};

size_t row_bytes(const Activations &rows) {
    const size_t num_inputs = size_t(rows.num_inputs);
    if (rows.prepared == Prepared::int8) return num_inputs / block_depth * sizeof(Int8Block);
    return num_inputs * (rows.prepared == Prepared::f32 ? sizeof(float) : sizeof(uint16_t));
}

// Of the widest tile for so many rows.
int streams_log_for(const TileShapes &shapes, int num_rows) {
    int log = max_streams_log;
    while (shapes.at(num_rows, log) == nullptr) log--;
    return log;
}

// One unit of each stream: stream s has unit first + s * apart.
void multiply_units(const Product &product, int streams_log, int first, int apart, int tile_rows) {
    alignas(64) float products[max_products];
    const int num_streams = 1 << streams_log;
    const int num_tiles = (product.num_rows + tile_rows - 1) / tile_rows;
    for (int at = 0; at < num_tiles; at++) {
        const int begin = int(int64_t(product.num_rows) * at / num_tiles), count = int(int64_t(product.num_rows) * (at + 1) / num_tiles) - begin;
        const int size = num_streams * count * panel_width;
        TileWork work = {{}, product.matrix.num_blocks(), &product.rows, product.first_row + begin};
        for (int panel = 0; panel < product.unit; panel++) {
            for (int stream = 0; stream < num_streams; stream++) work.panels[stream] = product.matrix.panel((first + stream * apart) * product.unit + panel);
            product.shapes.at(count, streams_log)(work, products + panel * size);
        }
        for (int stream = 0; stream < num_streams; stream++) {
            const float *results = products + stream * count * panel_width;
            finish(product.matrix, product.output, first + stream * apart, work.first_row, count, results, results + size);
        }
    }
}

void multiply_chunk(const Product &product, int first, int end) {
    const int num_tiles = (product.num_rows + product.shapes.max_rows - 1) / product.shapes.max_rows;
    const int tile_rows = (product.num_rows + num_tiles - 1) / num_tiles;
    for (int log = streams_log_for(product.shapes, tile_rows); log >= 0; log--) {
        const int apart = (end - first) >> log;
        for (int at = 0; at < apart; at++) multiply_units(product, log, first + at, apart, tile_rows);
        first += apart << log;
    }
}

} // namespace

void multiply_vectors(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output) {
    const TileShapes shapes = rows.prepared == Prepared::int8 ? int8_tiles(matrix.format) : float_tiles(matrix.format, rows.prepared);
    const int unit = output.kind == Output::Kind::silu_mul ? 2 : 1;
    const size_t fitting = chunk_bytes / row_bytes(rows);
    const int chunk = int(fitting > 4 * size_t(shapes.max_rows) ? fitting : 4 * size_t(shapes.max_rows));
    const int num_chunks = (num_rows + chunk - 1) / chunk;
    for (int at = 0; at < num_chunks; at++) {
        const int begin = int(int64_t(num_rows) * at / num_chunks), end = int(int64_t(num_rows) * (at + 1) / num_chunks);
        multiply_chunk({matrix, rows, output, shapes, unit, begin, end - begin}, first_panel / unit, end_panel / unit);
    }
}

} // namespace COREKIT_LEVEL
} // namespace corekit
