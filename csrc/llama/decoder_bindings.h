// The decoder for Python.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

void bind_decoder(pybind11::module_ &module);
