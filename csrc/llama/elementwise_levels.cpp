#include "llama/elementwise_levels.h"

namespace corekit {

const ElementwiseKernels &elementwise_kernels(InstructionSet set) {
#if defined(COREKIT_X86)
    switch (set) {
    case InstructionSet::amx:
    case InstructionSet::avx512_bf16:
    case InstructionSet::avx512: return avx512::elementwise;
    case InstructionSet::avx2: return avx2::elementwise;
    case InstructionSet::portable: break;
    }
#endif
    (void)set;
    return portable::elementwise;
}

} // namespace corekit
