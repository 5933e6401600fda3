#include "attention/kernels.h"

namespace corekit {

namespace portable {
extern const AttentionKernels attention_functions;
}
#if defined(COREKIT_X86)
namespace avx2 {
extern const AttentionKernels attention_functions;
}
namespace avx512 {
extern const AttentionKernels attention_functions;
}
#endif

const AttentionKernels &attention_kernels(InstructionSet set) {
    switch (set) {
#if defined(COREKIT_X86)
    case InstructionSet::avx2: return avx2::attention_functions;
    case InstructionSet::avx512:
    case InstructionSet::avx512_bf16:
    case InstructionSet::amx: return avx512::attention_functions;
#endif
    default: return portable::attention_functions;
    }
}

} // namespace corekit
