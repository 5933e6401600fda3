#include "llama/linear_bindings.h"

#include <pybind11/stl.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "linear/kernels.h"
#include "linear/stored.h"
#include "simd/buffer.h"
#include "llama/packed_matrix.h"

namespace py = pybind11;
using namespace corekit;

namespace {

constexpr const char *format_names[] = {"nibble", "byte", "channel", "bf16", "f32"};
constexpr const char *stored_names[] = {"Q4_0", "Q4_1", "Q8_0", "F32", "F16", "BF16"}; // GGUF's
constexpr const char *prepared_names[] = {"int8", "bf16", "f32"};
constexpr const char *kind_names[] = {"store", "add", "silu_mul"};

// The place of a name among others; ValueError that lists them.
template <class Enum, size_t count> Enum parse(const char *what, const std::string &name, const char *const (&names)[count]) {
    std::string known;
    for (size_t at = 0; at < count; at++) {
        if (name == names[at]) return Enum(at);
        known += (at ? ", " : "") + std::string(names[at]);
    }
    throw py::value_error(std::string(what) + " is \"" + name + "\"; there are " + known);
}

InstructionSet parse_set(const std::string &name) {
    InstructionSet set;
    if (parse_instruction_set(name, &set)) return set;
    std::string known = "auto";
    for (const std::string &runnable : runnable_instruction_sets()) known += ", " + runnable;
    throw py::value_error("instruction_set is \"" + name + "\"; this processor runs " + known);
}

std::string shape_text(const py::array &array) {
    std::string text = "[";
    for (py::ssize_t at = 0; at < array.ndim(); at++) text += (at ? ", " : "") + std::to_string(array.shape(at));
    return text + "]";
}

// What native code may walk over: the type, two dimensions, each row in one piece, no row before the first.
template <class T> void check_rows(const char *what, const py::array &array) {
    if (!py::isinstance<py::array_t<T>>(array))
        throw py::value_error(std::string(what) + " is an array of " + std::string(py::str(array.dtype())) + "; wanted is " +
                              std::string(py::str(py::dtype::of<T>())));
    if (array.ndim() != 2 || array.shape(0) < 1 || array.shape(1) < 1)
        throw py::value_error(std::string(what) + " has shape " + shape_text(array) + "; wanted are two dimensions, neither of them 0");
    if (array.shape(0) > INT32_MAX / 32 || array.shape(1) > INT32_MAX / 16)
        throw py::value_error(std::string(what) + " is too large: shape " + shape_text(array));
    const bool in_one_piece = array.shape(1) == 1 || array.strides(1) == py::ssize_t(sizeof(T));
    if (!in_one_piece || (array.shape(0) > 1 && array.strides(0) < array.shape(1) * py::ssize_t(sizeof(T))))
        throw py::value_error(std::string(what) + " has strides that are not those of whole rows, one after the other");
    if (reinterpret_cast<uintptr_t>(array.data()) % alignof(T) != 0 || array.strides(0) % alignof(T) != 0)
        throw py::value_error(std::string(what) + " is misaligned");
}

const float *check_bias(const py::object &bias, int num_outputs) {
    if (bias.is_none()) return nullptr;
    if (!py::isinstance<py::array_t<float>>(bias)) throw py::value_error("bias is no float32 array");
    const py::array array = py::reinterpret_borrow<py::array>(bias);
    const bool fits = array.ndim() == 1 && array.shape(0) == num_outputs && (num_outputs == 1 || array.strides(0) == 4);
    if (!fits) throw py::value_error("bias has shape " + shape_text(array) + "; wanted is [" + std::to_string(num_outputs) + "] without gaps");
    if (reinterpret_cast<uintptr_t>(array.data()) % alignof(float) != 0) throw py::value_error("bias is misaligned");
    return static_cast<const float *>(array.data());
}

using Part = std::pair<py::array, std::string>;

int inputs_of(const py::array &rows, Stored type) {
    const size_t num_bytes = size_t(rows.shape(1)), block = stored_block_bytes(type), least = stored_in_blocks(type) ? block : block / block_depth;
    if (num_bytes % least == 0) return int(num_bytes * block_depth / block);
    throw py::value_error("rows of " + std::to_string(num_bytes) + " bytes; in " + stored_names[int(type)] + " they are a multiple of " +
                          std::to_string(least));
}

std::shared_ptr<PackedMatrix> pack(const std::vector<Part> &parts, const std::string &format_name, bool interleaved, uintptr_t pool_address) {
    const Format format = parse<Format>("format", format_name, format_names);
    corekit_pool *pool = pool_at(pool_address);
    std::vector<StoredRows> stored;
    int num_inputs = 0;
    int64_t num_outputs = 0;
    for (const auto &[rows, type_name] : parts) {
        const Stored type = parse<Stored>("stored type", type_name, stored_names);
        check_rows<uint8_t>("a part", rows);
        if (!can_pack(type, format))
            throw py::value_error(type_name + " weights cannot be packed as " + format_name + " without changing them; bf16 and channel take any");
        const int inputs = inputs_of(rows, type), num_rows = int(rows.shape(0));
        if (!stored.empty() && inputs != num_inputs)
            throw py::value_error("parts of " + std::to_string(num_inputs) + " and " + std::to_string(inputs) + " inputs");
        num_inputs = inputs;
        num_outputs += interleaved ? interleaved_outputs(num_rows) / 2 : num_rows;
        stored.push_back({type, static_cast<const uint8_t *>(rows.data()), num_rows > 1 ? size_t(rows.strides(0)) : size_t(rows.shape(1)), num_rows});
    }
    if (num_outputs > INT32_MAX / 2) throw py::value_error("a matrix of " + std::to_string(num_outputs) + " outputs is too large");
    const py::gil_scoped_release unlocked;
    auto packed = std::make_shared<PackedMatrix>(format, int(num_outputs), num_inputs);
    packed->pack(pool, stored, interleaved);
    return packed;
}

py::array_t<float> unpack(const PackedMatrix &packed) {
    const Matrix &matrix = packed.matrix();
    py::array_t<float> weights({matrix.num_outputs, matrix.num_inputs});
    for (int output = 0; output < matrix.num_outputs; output++) unpack_row(matrix, output, weights.mutable_data(output, 0));
    return weights;
}

// One product on all threads of a pool: rows are shared while they are prepared, panels while they are multiplied.
struct Product {
    const LinearKernels &kernels;
    const Matrix &matrix;
    const float *from;
    size_t from_stride;
    int num_rows;
    Activations rows;
    Output output;
    std::vector<Buffer<uint8_t>> scratch; // for each thread
    corekit_pool *pool;

    static void run(void *arg, int thread, int num_threads) {
        const Product &self = *static_cast<const Product *>(arg);
        for (int row = thread; row < self.num_rows; row += num_threads)
            self.kernels.prepare(self.from + row * self.from_stride, self.matrix.num_inputs, self.rows, row);
        if (self.pool) self.pool->barrier(self.pool);
        int first, end;
        share_panels(self.matrix.num_panels(), self.output.kind == Output::Kind::silu_mul, thread, num_threads, &first, &end);
        if (first < end)
            self.kernels.multiply(self.matrix, self.rows, self.num_rows, first, end, self.output, const_cast<Buffer<uint8_t> &>(self.scratch[thread]).at());
    }
};

void multiply(const PackedMatrix &packed, const py::array &x, py::array &to, const std::string &kind_name, const py::object &bias, const std::string &set_name,
              const std::string &prepared_name, uintptr_t pool_address, bool by_amx) {
    const Matrix &matrix = packed.matrix();
    const LinearKernels &kernels = by_amx ? amx_kernels(parse_set(set_name)) : linear_kernels(parse_set(set_name));
    const auto kind = parse<Output::Kind>("kind", kind_name, kind_names);
    const bool pairs = kind == Output::Kind::silu_mul;
    corekit_pool *pool = pool_at(pool_address);
    check_rows<float>("x", x);
    check_rows<float>("to", to);
    const int num_rows = int(x.shape(0)), width = pairs ? matrix.num_outputs / 2 : matrix.num_outputs;
    if (x.shape(1) != matrix.num_inputs)
        throw py::value_error("x has shape " + shape_text(x) + "; the matrix has " + std::to_string(matrix.num_inputs) + " inputs");
    if (to.shape(0) != num_rows || to.shape(1) != width)
        throw py::value_error("to has shape " + shape_text(to) + "; wanted is [" + std::to_string(num_rows) + ", " + std::to_string(width) + "]");
    if (!to.writeable()) throw py::value_error("to is read-only");
    if (pairs && (matrix.num_outputs % (2 * panel_width) != 0 || !bias.is_none()))
        throw py::value_error("silu_mul is for interleaved matrices, and without bias");
    const Prepared wanted = kernels.wants(matrix.format, num_rows);
    const Prepared prepared = prepared_name == "wanted" ? wanted : parse<Prepared>("prepared", prepared_name, prepared_names);
    if (!kernels.can_multiply(matrix.format, prepared))
        throw py::value_error(std::string(format_names[int(matrix.format)]) + " weights have no product with rows in " + prepared_names[int(prepared)]);
    const Output output{kind, static_cast<float *>(to.mutable_data()), size_t(num_rows > 1 ? to.strides(0) / 4 : width), check_bias(bias, matrix.num_outputs)};

    const py::gil_scoped_release unlocked;
    const size_t num_inputs = size_t(matrix.num_blocks()) * block_depth, count = size_t(num_rows + 15) / 16 * 16 * num_inputs;
    Buffer<Int8Block> blocks;
    Buffer<float> floats, scaled_sums;
    Buffer<uint16_t> halves;
    if (prepared == Prepared::int8) blocks.reserve(count / block_depth), scaled_sums.reserve(num_rows);
    if (prepared == Prepared::bf16) halves.reserve(count);
    if (prepared == Prepared::f32) floats.reserve(count);
    std::vector<Buffer<uint8_t>> scratch(pool ? pool->num_threads : 1);
    for (auto &each : scratch) each.reserve(kernels.scratch_bytes(matrix, num_rows) + 64);
    const Activations rows{prepared, int(num_inputs), blocks.at(), scaled_sums.at(), halves.at(), floats.at()};
    Product product{
        kernels, matrix, static_cast<const float *>(x.data()), size_t(num_rows > 1 ? x.strides(0) / 4 : x.shape(1)), num_rows, rows, output, std::move(scratch),
        pool};
    if (pool) pool->run(pool, &Product::run, &product);
    else Product::run(&product, 0, 1);
}

} // namespace

corekit_pool *pool_at(uintptr_t address) {
    if (address == 0) return nullptr;
    auto *pool = reinterpret_cast<corekit_pool *>(address);
    if (address % alignof(corekit_pool) != 0) throw py::value_error("the pool's address is misaligned");
    if (pool->abi != COREKIT_POOL_ABI)
        throw py::value_error("the thread pool speaks version " + std::to_string(pool->abi) + " of the interface, this module " +
                              std::to_string(COREKIT_POOL_ABI));
    return pool;
}

void bind_linear(py::module_ &module) {
    py::class_<PackedMatrix, std::shared_ptr<PackedMatrix>>(module, "Matrix")
        .def_static("pack", &pack, py::arg("parts"), py::arg("format"), py::arg("interleaved") = false, py::arg("pool_address") = 0)
        .def("unpack", &unpack)
        .def_property_readonly("format", [](const PackedMatrix &self) { return format_names[int(self.matrix().format)]; })
        .def_property_readonly("num_outputs", [](const PackedMatrix &self) { return self.matrix().num_outputs; })
        .def_property_readonly("num_inputs", [](const PackedMatrix &self) { return self.matrix().num_inputs; })
        .def_property_readonly("num_bytes", [](const PackedMatrix &self) { return self.matrix().num_bytes(); });
    module.def("multiply", &multiply, py::arg("matrix"), py::arg("x"), py::arg("to"), py::kw_only(), py::arg("kind") = "store", py::arg("bias") = py::none(),
               py::arg("instruction_set") = "auto", py::arg("prepared") = "wanted", py::arg("pool_address") = 0, py::arg("by_amx") = false);
}
