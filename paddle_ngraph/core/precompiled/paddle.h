// Headers of Paddle and pybind11 that are compiled once, see setup.py. Sources include what they
// use all the same: clang-tidy reads them without this.
#include "paddle/phi/api/all.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/storage_properties.h"
#include "paddle/pir/include/core/program.h"

#include "core/common/python_casts.h"

// libpaddle.so exports these template instances; without the declarations, each source file would
// compile them (0.2 s).
extern template class phi::TypeInfo<phi::TensorBase>;
extern template class phi::TypeInfo<phi::StorageProperties>;
extern template class phi::TypeRegistry<phi::TensorBase>;
extern template class phi::TypeRegistry<phi::StorageProperties>;
