// Headers of Paddle and pybind11 that are compiled once, see setup.py. Sources include what they
// use all the same: clang-tidy reads them without this.
#include "paddle/phi/api/all.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/pir/include/core/program.h"

#include "core/common/python_casts.h"
