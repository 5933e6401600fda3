#include "linear/kernels.h"

namespace corekit {

struct LevelTables {
    const LinearKernels &linear, &amx;
};

#define COREKIT_TABLES(level)                                                                                                                                  \
    namespace level {                                                                                                                                          \
    extern const LinearKernels linear_table, amx_table;                                                                                                        \
    static const LevelTables tables = {linear_table, amx_table};                                                                                               \
    }

COREKIT_TABLES(portable)
#ifdef COREKIT_X86
COREKIT_TABLES(avx2)
COREKIT_TABLES(avx512)
COREKIT_TABLES(avx512_bf16)
COREKIT_TABLES(amx)
#endif

static const LevelTables &tables_of(InstructionSet set) {
    switch (set) {
#ifdef COREKIT_X86
    case InstructionSet::amx: return amx::tables;
    case InstructionSet::avx512_bf16: return avx512_bf16::tables;
    case InstructionSet::avx512: return avx512::tables;
    case InstructionSet::avx2: return avx2::tables;
#endif
    default: return portable::tables;
    }
}

const LinearKernels &linear_kernels(InstructionSet set) { return tables_of(set).linear; }

const LinearKernels &amx_kernels(InstructionSet set) { return tables_of(set).amx; }

} // namespace corekit
