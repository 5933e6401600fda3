// Packed matrices and their products for Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "corekit/pool.h"

void bind_linear(pybind11::module_ &module);

// The pool at an address that Python gave: 0 is none. ValueError if it speaks another version of the interface.
corekit_pool *pool_at(uintptr_t address);
