// The native module of corekit_llama.
#include "llama/decoder_bindings.h"
#include "llama/linear_bindings.h"

PYBIND11_MODULE(_llama, module) {
    bind_linear(module);
    bind_decoder(module);
}
