// Which instruction sets there are code for, and which of them this processor runs. Header only: every module asks for itself.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#if defined(__linux__) && defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace corekit {

// Rising: each has all that those before it have. The names are those of settings and of the namespaces of kernels ("-" as "_").
enum class InstructionSet { portable, avx2, avx512, avx512_bf16, amx };

inline constexpr const char *instruction_set_names[] = {"portable", "avx2", "avx512", "avx512-bf16", "amx"};

#if defined(__x86_64__)
// The kernel grants the tile registers to a process that asks (Linux 5.16 and later); granting twice does no harm.
inline bool may_use_tiles() {
#if defined(__linux__)
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const bool tiles = (d >> 24) & 1, int8 = (d >> 25) & 1, bf16 = (d >> 22) & 1;
    constexpr long request_permission = 0x1023, tile_data = 18;
    return tiles && int8 && bf16 && syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
#else
    return false;
#endif
}
#endif

inline InstructionSet best_instruction_set() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) return InstructionSet::portable;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
    if (!avx512) return InstructionSet::avx2;
    if (!__builtin_cpu_supports("avx512bf16")) return InstructionSet::avx512;
    return may_use_tiles() ? InstructionSet::amx : InstructionSet::avx512_bf16;
#else
    return InstructionSet::portable;
#endif
}

// Those that this processor runs, the best last.
inline std::vector<std::string> runnable_instruction_sets() {
    std::vector<std::string> names;
    for (int at = 0; at <= static_cast<int>(best_instruction_set()); at++) names.push_back(instruction_set_names[at]);
    return names;
}

// "auto" is the best. False: no such set, or not on this processor.
inline bool parse_instruction_set(const std::string &name, InstructionSet *found) {
    const InstructionSet best = best_instruction_set();
    if (name == "auto") {
        *found = best;
        return true;
    }
    for (int at = 0; at <= static_cast<int>(best); at++) {
        if (name == instruction_set_names[at]) {
            *found = static_cast<InstructionSet>(at);
            return true;
        }
    }
    return false;
}

} // namespace corekit
