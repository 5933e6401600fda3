// Python's side of the decoder: addresses, shapes and arrays are checked here and in what is called, and Python's lock is released while it computes.
#include "llama/decoder_bindings.h"

#include <map>
#include <string>

#include <pybind11/stl.h>

#include "llama/decoder.h"
#include "llama/linear_bindings.h"

namespace py = pybind11;

namespace {

using namespace corekit;
using Array = py::array_t<float, py::array::c_style | py::array::forcecast>;

Floats floats(const py::object &given, const char *name) {
    if (given.is_none()) return {};
    const Array array = given.cast<Array>();
    if (array.ndim() != 1) throw py::value_error(std::string(name) + " must have one dimension");
    return Floats(array.data(), array.data() + array.size());
}

template <class T> T *address(uintptr_t at) {
    if (at % alignof(T)) throw py::value_error("an address is not aligned to its elements");
    return reinterpret_cast<T *>(at);
}

// What attention reads or gives.
uint8_t *of_attention(const Decoder &decoder, uintptr_t at) {
    if (at % (decoder.shape().is_bf16 ? 2 : 4)) throw py::value_error("an address is not aligned to its elements");
    return reinterpret_cast<uint8_t *>(at);
}

AttentionInputs inputs_at(const Decoder &decoder, uintptr_t query, uintptr_t key, uintptr_t value) {
    return {of_attention(decoder, query), of_attention(decoder, key), of_attention(decoder, value)};
}

std::unique_ptr<Decoder> make_decoder(uintptr_t pool, const std::string &instruction_set, int hidden_size, int intermediate_size, int num_heads,
                                      int num_kv_heads, int head_dim, int vocab_size, int num_layers, int num_positions, float norm_epsilon, bool bf16) {
    InstructionSet set;
    if (!parse_instruction_set(instruction_set, &set)) throw py::value_error("instruction set " + instruction_set + " is unknown or not on this processor");
    const DecoderShape shape{hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, vocab_size, num_layers, num_positions, norm_epsilon, bf16};
    if (!pool) throw py::value_error("the address of the thread pool is null");
    return std::make_unique<Decoder>(pool_at(pool), set, shape);
}

using Packed = std::shared_ptr<PackedMatrix>;

using Given = const py::object &; // an array of floats, or None

void set_layer(Decoder &self, int layer, Packed qkv, Packed output, Packed gate_up, Packed down, Given input_norm, Given mlp_norm, Given query_norm,
               Given key_norm, Given qkv_bias, Given output_bias, Given gate_bias, Given up_bias, Given down_bias, bool rotates) {
    DecoderLayer weights;
    weights.qkv = std::move(qkv);
    weights.output = std::move(output);
    weights.gate_up = std::move(gate_up);
    weights.down = std::move(down);
    weights.input_norm = floats(input_norm, "input_norm");
    weights.mlp_norm = floats(mlp_norm, "mlp_norm");
    weights.query_norm = floats(query_norm, "query_norm");
    weights.key_norm = floats(key_norm, "key_norm");
    weights.qkv_bias = floats(qkv_bias, "qkv_bias");
    weights.output_bias = floats(output_bias, "output_bias");
    weights.gate_bias = floats(gate_bias, "gate_bias");
    weights.up_bias = floats(up_bias, "up_bias");
    weights.down_bias = floats(down_bias, "down_bias");
    weights.rotates = rotates;
    self.set_layer(layer, std::move(weights));
}

KvPlace place_of(const py::handle &tensor) {
    const auto stride = [&](const char *name) { return tensor.attr(name).cast<int64_t>(); };
    const auto group = [&](const char *name) { return tensor.attr(name).cast<int>(); };
    return {reinterpret_cast<void *>(tensor.attr("address").cast<uintptr_t>()),
            stride("block_stride"),
            stride("head_stride"),
            stride("token_stride"),
            stride("dim_stride"),
            group("token_group"),
            group("dim_group")};
}

// views: KvView or None for each layer.
void set_kv(Decoder &self, const py::sequence &views) {
    std::vector<KvLayer> layers;
    int block_size = 0, num_blocks = 0;
    for (const py::handle view : views) {
        if (view.is_none()) {
            layers.push_back({});
            continue;
        }
        const std::string dtype = view.attr("dtype").cast<std::string>();
        if (dtype != "float32" && dtype != "bfloat16") throw py::value_error("a KV pool of " + dtype + " cannot be written; float32 and bfloat16 can");
        const auto count = [&](const char *name) { return view.attr(name).cast<int>(); };
        const DecoderShape &shape = self.shape();
        if (count("num_kv_heads") != shape.num_kv_heads || count("key_dim") != shape.head_dim || count("value_dim") != shape.head_dim)
            throw py::value_error("a KV pool has other heads than the model");
        const int size = count("block_size"), blocks = count("num_blocks");
        if (size < 1 || blocks < 1 || (block_size && (size != block_size || blocks != num_blocks)))
            throw py::value_error("the KV pools of all layers have the same number of blocks, of the same size");
        block_size = size;
        num_blocks = blocks;
        layers.push_back({true, dtype == "bfloat16", place_of(view.attr("key")), place_of(view.attr("value"))});
    }
    self.set_kv(std::move(layers), block_size ? block_size : 1, int64_t(block_size) * num_blocks);
}

void bind_weights(py::class_<Decoder> &decoder) {
    const py::none none;
    decoder
        .def(py::init(&make_decoder), py::kw_only(), py::arg("pool"), py::arg("instruction_set"), py::arg("hidden_size"), py::arg("intermediate_size"),
             py::arg("num_heads"), py::arg("num_kv_heads"), py::arg("head_dim"), py::arg("vocab_size"), py::arg("num_layers"), py::arg("num_positions"),
             py::arg("norm_epsilon"), py::arg("bf16"))
        .def("set_layer", &set_layer, py::arg("layer"), py::kw_only(), py::arg("qkv"), py::arg("output"), py::arg("gate_up"), py::arg("down"),
             py::arg("input_norm"), py::arg("mlp_norm"), py::arg("query_norm") = none, py::arg("key_norm") = none, py::arg("qkv_bias") = none,
             py::arg("output_bias") = none, py::arg("gate_bias") = none, py::arg("up_bias") = none, py::arg("down_bias") = none, py::arg("rotates") = true)
        .def(
            "set_ends",
            [](Decoder &self, Packed embedding, Packed head, Given final_norm) {
                self.set_ends(std::move(embedding), std::move(head), floats(final_norm, "final_norm"));
            },
            py::kw_only(), py::arg("embedding"), py::arg("head"), py::arg("final_norm"))
        .def("set_rotary", &Decoder::set_rotary, py::arg("frequencies"), py::arg("scale"))
        .def("set_kv", &set_kv, py::arg("views"));
}

void start(Decoder &self, uintptr_t token_ids, uintptr_t positions, uintptr_t slots, int num_tokens, uintptr_t query, uintptr_t key, uintptr_t value) {
    const AttentionInputs first = inputs_at(self, query, key, value);
    const int64_t *ids = address<int64_t>(token_ids), *places = address<int64_t>(positions), *at = address<int64_t>(slots);
    py::gil_scoped_release release;
    self.start(ids, places, at, num_tokens, first);
}

void advance(Decoder &self, int layer, uintptr_t attended, uintptr_t query, uintptr_t key, uintptr_t value) {
    const void *gave = of_attention(self, attended);
    const AttentionInputs next = inputs_at(self, query, key, value);
    py::gil_scoped_release release;
    self.advance(layer, gave, next);
}

void finish(Decoder &self, uintptr_t attended, uintptr_t hidden) {
    const void *gave = of_attention(self, attended);
    float *to = address<float>(hidden);
    py::gil_scoped_release release;
    self.finish(gave, to);
}

void logits(Decoder &self, uintptr_t hidden, int num_rows, uintptr_t to) {
    const float *from = address<float>(hidden);
    float *place = address<float>(to);
    py::gil_scoped_release release;
    self.logits(from, num_rows, place);
}

std::map<std::string, double> take_seconds(Decoder &self) {
    const auto seconds = self.take_seconds();
    std::map<std::string, double> named;
    for (int phase = 0; phase < num_phases; phase++) named[phase_names[phase]] = seconds[phase];
    return named;
}

} // namespace

void bind_decoder(py::module_ &module) {
    module.def("instruction_sets", &runnable_instruction_sets);
    py::class_<Decoder> decoder(module, "Decoder");
    bind_weights(decoder);
    decoder
        .def("start", &start, py::arg("token_ids"), py::arg("positions"), py::arg("slots"), py::arg("num_tokens"), py::arg("query"), py::arg("key"),
             py::arg("value"))
        .def("advance", &advance, py::arg("layer"), py::arg("attended"), py::arg("query"), py::arg("key"), py::arg("value"))
        .def("finish", &finish, py::arg("attended"), py::arg("hidden"))
        .def("logits", &logits, py::arg("hidden"), py::arg("num_rows"), py::arg("to"))
        .def("take_seconds", &take_seconds);
}
