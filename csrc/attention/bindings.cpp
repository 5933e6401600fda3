// Python's side of attention over block tables: addresses and shapes come in, are checked, and Python's lock is released.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <type_traits>

#include "attention/paged.h"

namespace py = pybind11;

namespace {

using corekit::Number;
using corekit::PagedAttention;
using Copies = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

template <class T> T *at(uintptr_t address) {
    if constexpr (!std::is_void_v<T>)
        if (address % alignof(T)) throw py::value_error("the address " + std::to_string(address) + " is not aligned to what lies there");
    return reinterpret_cast<T *>(address);
}

Number number_of(const std::string &dtype) {
    if (dtype == "float32") return Number::f32;
    if (dtype == "bfloat16") return Number::bf16;
    throw py::value_error("numbers are 'float32' or 'bfloat16', not '" + dtype + "'");
}

std::shared_ptr<PagedAttention> make(uintptr_t pool, const std::string &set, const std::string &dtype, int block_size, int64_t num_blocks,
                                     int64_t num_host_blocks) {
    corekit::InstructionSet found;
    if (!corekit::parse_instruction_set(set, &found)) {
        std::string all;
        for (const std::string &name : corekit::runnable_instruction_sets()) all += (all.empty() ? "" : ", ") + name;
        throw py::value_error("instruction_set is '" + set + "'; this processor runs auto, " + all);
    }
    return std::make_shared<PagedAttention>(at<corekit_pool>(pool), found, number_of(dtype), block_size, num_blocks, num_host_blocks);
}

void add_layer(PagedAttention &self, int num_heads, int num_kv_heads, int key_dim, int value_dim, float scale, float soft_cap, int window, int chunk,
               bool sinks, int from_layer, uintptr_t device, size_t device_bytes, uintptr_t host, size_t host_bytes) {
    if (num_kv_heads < 1 || num_heads < 1 || num_heads % num_kv_heads)
        throw py::value_error(std::to_string(num_heads) + " heads do not divide into " + std::to_string(num_kv_heads) + " groups of equal size");
    corekit::Layer layer{};
    layer.shape.cache = self.cache();
    layer.shape.block_size = self.block_size();
    layer.shape.num_kv_heads = num_kv_heads;
    layer.shape.group = num_heads / num_kv_heads;
    layer.shape.key_dim = key_dim;
    layer.shape.value_dim = value_dim;
    layer.shape.scale = scale;
    layer.shape.soft_cap = soft_cap;
    layer.shape.window = window;
    layer.shape.chunk = chunk;
    PagedAttention::measure(&layer.shape);
    layer.num_heads = num_heads;
    layer.has_sinks = sinks;
    layer.owns_cache = from_layer < 0;
    layer.device = at<uint8_t>(device);
    layer.host = at<uint8_t>(host);
    if (from_layer >= 0) {
        const corekit::Layer &source = self.layer(size_t(from_layer));
        if (!source.owns_cache || source.shape.num_kv_heads != num_kv_heads || source.shape.key_dim != key_dim || source.shape.value_dim != value_dim)
            throw py::value_error("layer " + std::to_string(from_layer) + " has no cache of this shape to read");
        layer.device = source.device;
        layer.host = source.host;
    } else if (device_bytes / layer.shape.block_bytes < size_t(self.num_blocks()) || host_bytes / layer.shape.block_bytes < size_t(self.num_host_blocks())) {
        throw py::value_error("a layer's pools have " + std::to_string(device_bytes) + " and " + std::to_string(host_bytes) + " bytes; its blocks have " +
                              std::to_string(layer.shape.block_bytes) + " each");
    }
    self.add_layer(layer);
}

// A plan remembers whose it is, so that another backend cannot be run with its tables.
struct BoundPlan {
    std::shared_ptr<PagedAttention> owner;
    std::shared_ptr<corekit::Plan> plan;
};

BoundPlan plan(const std::shared_ptr<PagedAttention> &self, int num_rows, int num_tokens, uintptr_t starts, uintptr_t seq_lens, uintptr_t blocks,
               int64_t width, int64_t row_stride, int64_t column_stride, uintptr_t slots) {
    return {self, self->plan({num_rows, num_tokens, at<const int64_t>(starts), at<const int64_t>(seq_lens), at<const int64_t>(blocks), width, row_stride,
                              column_stride, at<const int64_t>(slots)})};
}

void run(PagedAttention &self, size_t layer, const BoundPlan &plan, bool query_halves, uintptr_t query, int64_t query_token, int64_t query_head, bool kv_halves,
         uintptr_t key, int64_t key_token, int64_t key_head, uintptr_t value, int64_t value_token, int64_t value_head, uintptr_t sinks, uintptr_t out) {
    if (plan.owner.get() != &self) throw py::value_error("run got a plan of another backend");
    const Number of_query = query_halves ? Number::bf16 : Number::f32, of_kv = kv_halves ? Number::bf16 : Number::f32;
    const corekit::Inputs inputs{{at<const void>(query), of_query, query_token, query_head},
                                 {at<const void>(key), of_kv, key_token, key_head},
                                 {at<const void>(value), of_kv, value_token, value_head},
                                 at<const float>(sinks),
                                 at<void>(out)};
    py::gil_scoped_release released;
    self.run(layer, *plan.plan, inputs);
}

void copy(PagedAttention &self, const Copies &copies) {
    if (copies.ndim() != 2 || copies.shape(1) != 4) throw py::value_error("copies are rows of (source, on host, target, on host)");
    std::vector<corekit::BlockCopy> list;
    const auto rows = copies.unchecked<2>();
    for (py::ssize_t row = 0; row < rows.shape(0); row++) list.push_back({rows(row, 0), rows(row, 1), rows(row, 2), rows(row, 3)});
    py::gil_scoped_release released;
    self.copy(list);
}

} // namespace

PYBIND11_MODULE(_cpu_paged, module) {
    py::class_<BoundPlan>(module, "Plan").def_property_readonly("num_tokens", [](const BoundPlan &self) { return self.plan->num_tokens(); });
    py::class_<PagedAttention, std::shared_ptr<PagedAttention>>(module, "PagedAttention")
        .def(py::init(&make), py::arg("pool"), py::arg("instruction_set"), py::arg("dtype"), py::arg("block_size"), py::arg("num_blocks"),
             py::arg("num_host_blocks"))
        .def("add_layer", &add_layer, py::kw_only(), py::arg("num_heads"), py::arg("num_kv_heads"), py::arg("key_dim"), py::arg("value_dim"), py::arg("scale"),
             py::arg("soft_cap"), py::arg("window"), py::arg("chunk"), py::arg("sinks"), py::arg("from_layer"), py::arg("device"), py::arg("device_bytes"),
             py::arg("host"), py::arg("host_bytes"))
        .def("plan", &plan)
        .def("run", &run)
        .def("copy", &copy);
    module.def("instruction_sets", &corekit::runnable_instruction_sets);
}
