// How what was known of a query and what a partition adds become one: the formula that all joining goes through, so that it gives the
// same bits wherever it is applied.
#pragma once

#include "attention/kernels.h"
#include "simd/vec.h"

namespace corekit {
namespace COREKIT_LEVEL {

struct Joint {
    float most;
    F32x16 before, now; // factors of what was known and of what comes
};

COREKIT_INLINE Joint joint_of(float most_before, float most_now) {
    const float most = most_now > most_before ? most_now : most_before;
    return {most, exp(set1(most_before - most)), exp(set1(most_now - most))};
}

COREKIT_INLINE F32x16 joined(const Joint &joint, F32x16 before, F32x16 now) { return fma(now, joint.now, mul(before, joint.before)); }

// Maximum and sum of weights, behind the sums of values.
COREKIT_INLINE void join_weights(const Joint &joint, float *tail, float sum_now) {
    float all[16];
    store(all, joined(joint, set1(tail[1]), set1(sum_now)));
    tail[0] = joint.most;
    tail[1] = all[0];
}

} // namespace COREKIT_LEVEL
} // namespace corekit
