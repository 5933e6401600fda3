#include "linear/kernels.h"

namespace corekit {

namespace portable {
extern const LinearKernels linear_table;
}
#ifdef COREKIT_X86
namespace avx2 {
extern const LinearKernels linear_table;
}
namespace avx512 {
extern const LinearKernels linear_table;
}
namespace avx512_bf16 {
extern const LinearKernels linear_table;
}
namespace amx {
extern const LinearKernels linear_table;
}
#endif

const LinearKernels &linear_kernels(InstructionSet set) {
    switch (set) {
#ifdef COREKIT_X86
    case InstructionSet::amx: return amx::linear_table;
    case InstructionSet::avx512_bf16: return avx512_bf16::linear_table;
    case InstructionSet::avx512: return avx512::linear_table;
    case InstructionSet::avx2: return avx2::linear_table;
#endif
    default: return portable::linear_table;
    }
}

} // namespace corekit
