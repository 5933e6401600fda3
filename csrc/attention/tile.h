// What the files of kernels of one instruction set share.
#pragma once

#include "attention/kernels.h"

namespace corekit {
namespace COREKIT_LEVEL {

void attend(const Shape &shape, const Tile &tile, const Stretch &next, float *states, uint8_t *scratch);

} // namespace COREKIT_LEVEL
} // namespace corekit
