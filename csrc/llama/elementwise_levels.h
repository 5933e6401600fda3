// Where the tables of elementwise.cpp are found, one for each instruction set that it was compiled for.
#pragma once

#include "llama/elementwise.h"

namespace corekit {

namespace portable {
extern const ElementwiseKernels elementwise;
}
#if defined(COREKIT_X86)
namespace avx2 {
extern const ElementwiseKernels elementwise;
}
namespace avx512 {
extern const ElementwiseKernels elementwise;
}
#endif

} // namespace corekit
