// What becomes of products. One function for all shapes of tiles, so that a result is rounded alike in all of them.
#include "linear/levels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

void finish(const Matrix &matrix, const Output &output, int unit, int first_row, int num_rows, const float *products, const float *up_products) {
    const int width = output.kind == Output::Kind::silu_mul ? matrix.num_outputs / 2 : matrix.num_outputs;
    const int column = unit * panel_width, left = width - column, count = left < panel_width ? left : panel_width;
    float *to = output.to + first_row * output.stride + column;
    const F32x16 bias = output.bias ? load_first(output.bias + column, count) : zero();
    for (int row = 0; row < num_rows; row++, to += output.stride, products += panel_width) {
        F32x16 result = load(products);
        if (output.kind == Output::Kind::silu_mul) {
            result = mul(silu(result), load(up_products));
            up_products += panel_width;
        } else if (output.bias) result = add(result, bias);
        if (output.kind == Output::Kind::add) result = add(load_first(to, count), result);
        if (count == panel_width) store(to, result);
        else store_first(to, result, count);
    }
}

} // namespace COREKIT_LEVEL
} // namespace corekit
