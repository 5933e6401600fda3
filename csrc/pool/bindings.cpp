// Python's side of the thread pool and of what the processor can do.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "pool/pool.h"
#include "simd/instruction_set.h"

namespace py = pybind11;

namespace {

class Pool {
public:
    Pool(int num_threads, int spin) {
        if (num_threads < 1 || num_threads > 1024) throw py::value_error("num_threads is " + std::to_string(num_threads) + "; 1 to 1024 are possible");
        if (spin < 0 || spin > 1000000) throw py::value_error("spin is " + std::to_string(spin) + "; 0 to 1000000 are possible");
        pool_.reset(new corekit::ThreadPool(num_threads, spin));
    }
    corekit::ThreadPool &pool() { return *pool_; }

private:
    std::unique_ptr<corekit::ThreadPool> pool_;
};

} // namespace

PYBIND11_MODULE(_pool, module) {
    py::class_<Pool>(module, "Pool")
        .def(py::init<int, int>(), py::arg("num_threads"), py::arg("spin"))
        .def_property_readonly("address", [](Pool &self) { return reinterpret_cast<uintptr_t>(self.pool().handle()); })
        .def_property_readonly("num_threads", [](Pool &self) { return self.pool().num_threads(); });
    module.def("has_bfloat16", [] { return corekit::best_instruction_set() >= corekit::InstructionSet::avx512_bf16; });
    module.def("instruction_sets", &corekit::runnable_instruction_sets);
}
