// The table of one instruction set: which form of rows is wanted, and what multiplies it.
#include "linear/amx.h"
#include "linear/levels.h"

namespace corekit {
namespace COREKIT_LEVEL {

namespace {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
constexpr bool has_amx = true;
#else
constexpr bool has_amx = false;
#endif

// AMD's processors take two products in the time of one; Intel's vectors take twice the time of float.
bool has_quick_bf16_dots() {
#if defined(__AVX512BF16__)
    return __builtin_cpu_is("amd");
#else
    return false;
#endif
}

Prepared wants(Format format, int num_rows) {
    if (format == Format::f32) return Prepared::f32;
    if (has_amx && num_rows >= min_amx_rows(format)) return Prepared::bf16;
    if (format == Format::bf16) return has_quick_bf16_dots() ? Prepared::bf16 : Prepared::f32;
    return Prepared::int8;
}

bool can_multiply(Format format, Prepared prepared) {
    if (format == Format::f32) return prepared == Prepared::f32;
    if (has_amx && prepared == Prepared::bf16) return true;
    if (format == Format::bf16) return prepared != Prepared::int8;
    return prepared == Prepared::int8;
}

void multiply(const Matrix &matrix, const Activations &rows, int num_rows, int first_panel, int end_panel, const Output &output, uint8_t *scratch) {
    if (has_amx && rows.prepared == Prepared::bf16) multiply_amx(matrix, rows, num_rows, first_panel, end_panel, output, scratch);
    else multiply_vectors(matrix, rows, num_rows, first_panel, end_panel, output);
}

size_t scratch_bytes(const Matrix &matrix, int num_rows) { return has_amx ? amx_scratch_bytes(matrix, num_rows) : 0; }

} // namespace

extern const LinearKernels linear_table = {&wants, &can_multiply, &prepare, &multiply, &scratch_bytes};

} // namespace COREKIT_LEVEL
} // namespace corekit
