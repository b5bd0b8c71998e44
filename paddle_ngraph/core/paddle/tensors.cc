#include "core/paddle/tensors.h"

#include <cstring>

#include "paddle/phi/api/include/context_pool.h"
#include "paddle/phi/api/include/tensor.h"
#include "paddle/phi/core/dense_tensor.h"

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/memory_pool.h"

// TransDataLayoutFromOneDNN is declared here, because Paddle's header declares it only for code
// that is compiled with Paddle's oneDNN.
namespace phi::funcs {
PADDLE_API void TransDataLayoutFromOneDNN(DataLayout in_layout, DataLayout out_layout,
                                          const DenseTensor& in, DenseTensor* out, Place place,
                                          bool always_copy);
}  // namespace phi::funcs

namespace paddle_ngraph {

namespace {

struct Dtype {
  paddle::DataType paddle_type;
  ElementType element;
  std::string ngraph;
  std::string paddle;
};

const std::vector<Dtype>& dtypes() {
  static const std::vector<Dtype> table = [] {
    std::vector<Dtype> rows;
    for (const auto& row : kElementTypes) {
      rows.push_back({phi::StringToDataType(row.paddle), row.element, row.ngraph, row.paddle});
    }
    return rows;
  }();
  return table;
}

paddle::DataType data_type(ElementType element) {
  for (const auto& row : dtypes()) {
    if (row.element == element) return row.paddle_type;
  }
  throw NgraphError("a result has no Paddle dtype");
}

std::vector<int64_t> dimensions(const ResultType& type) {
  return std::vector<int64_t>(type.shape.begin(), type.shape.end());
}

phi::DenseTensor allocate(phi::DenseTensorMeta meta) {
  inject_fault(Step::kAllocate);
  return empty(std::move(meta));
}

// Copies the elements of a view from one axis on. Returns the end of the copy.
char* copy_view(const char* from, char* to, const phi::DenseTensorMeta& meta, int axis,
                size_t bytes) {
  if (axis == meta.dims.size()) {
    std::memcpy(to, from, bytes);
    return to + bytes;
  }
  const int64_t step = meta.strides[axis] * static_cast<int64_t>(bytes);
  for (int64_t i = 0; i < meta.dims[axis]; ++i) {
    to = copy_view(from + i * step, to, meta, axis + 1, bytes);
  }
  return to;
}

phi::DenseTensor copy_of_view(const phi::DenseTensor& tensor) {
  phi::DenseTensor copy = allocate({tensor.dtype(), tensor.dims(), tensor.layout()});
  copy.ResetLoD(tensor.lod());
  if (tensor.numel() == 0) return copy;
  copy_view(static_cast<const char*>(tensor.data()), static_cast<char*>(copy.data()), tensor.meta(),
            0, phi::SizeOf(tensor.dtype()));
  return copy;
}

// The number of elements of a tensor, as Paddle computes it, but without Paddle's function calls:
// each run needs it for some hundred weights.
int64_t num_elements(const phi::DenseTensorMeta& meta) {
  if (meta.is_scalar) return 1;
  if (meta.dims.size() < 0) return product(meta.dims);
  int64_t count = 1;
  for (int axis = 0; axis < meta.dims.size(); ++axis) count *= meta.dims[axis];
  return count;
}

// Whether a tensor is contiguous in row-major order, as Paddle computes it, but without its
// function calls. False for empty tensors, for which Paddle has to be asked.
bool is_dense_row_major(const phi::DenseTensorMeta& meta) {
  if (meta.strides.size() != meta.dims.size()) return false;
  int64_t step = 1;
  for (int axis = meta.dims.size() - 1; axis >= 0; step *= meta.dims[axis--]) {
    if (meta.strides[axis] != step || meta.dims[axis] <= 0) return false;
  }
  return true;
}

}  // namespace

const std::string& element_name(paddle::DataType dtype) {
  for (const auto& row : dtypes()) {
    if (row.paddle_type == dtype) return row.ngraph;
  }
  throw NgraphError(concat("the dtype ", dtype, " has no nGraph element type"));
}

paddle::DataType dtype_named(const std::string& name) {
  for (const auto& row : dtypes()) {
    if (row.paddle == name) return row.paddle_type;
  }
  return paddle::DataType::UNDEFINED;
}

phi::DenseTensor* dense(const paddle::Tensor& tensor) {
  return static_cast<phi::DenseTensor*>(tensor.impl().get());
}

ResultType type_of(const phi::DenseTensor& tensor) {
  for (const auto& row : dtypes()) {
    if (row.paddle_type != tensor.dtype()) continue;
    ResultType type{row.element, {}};
    const auto& dims = tensor.dims();
    for (int i = 0; i < dims.size(); ++i) type.shape.push_back(static_cast<size_t>(dims[i]));
    return type;
  }
  throw NgraphError(concat("the dtype ", tensor.dtype(), " has no nGraph element type"));
}

size_t num_bytes(const phi::DenseTensor& tensor) {
  return static_cast<size_t>(num_elements(tensor.meta())) * phi::SizeOf(tensor.meta().dtype);
}

void* memory(const phi::DenseTensor& tensor) {
  return num_elements(tensor.meta()) == 0 ? nullptr : const_cast<void*>(tensor.data());
}

bool is_plain(const phi::DenseTensor& tensor) { return tensor.layout() != phi::DataLayout::ONEDNN; }

bool is_row_major(const phi::DenseTensor& tensor) {
  const auto& meta = tensor.meta();
  return is_plain(tensor) && (is_dense_row_major(meta) || meta.is_contiguous());
}

phi::DenseTensor to_row_major(const phi::DenseTensor& tensor) {
  if (is_plain(tensor)) return copy_of_view(tensor);
  phi::DenseTensor plain;
  phi::funcs::TransDataLayoutFromOneDNN(tensor.layout(), phi::DataLayout::NCHW, tensor, &plain,
                                        phi::CPUPlace(), /*always_copy=*/true);
  return plain;
}

phi::DenseTensor empty(phi::DenseTensorMeta meta) {
  static phi::Allocator* const allocator = paddle::GetAllocator(phi::CPUPlace());
  const size_t bytes = static_cast<size_t>(product(meta.dims)) * phi::SizeOf(meta.dtype);
  if (bytes < MemoryPool::kMinPooledBytes) return {allocator, std::move(meta)};
  return {MemoryPool::instance().allocate(bytes), std::move(meta)};
}

phi::DenseTensor allocate(const ResultType& type) {
  return allocate({data_type(type.element), phi::make_ddim(dimensions(type))});
}

phi::DenseTensor copy_of(const phi::DenseTensor& tensor) {
  phi::DenseTensor copy = allocate({tensor.dtype(), tensor.dims(), tensor.layout()});
  if (tensor.numel() > 0) std::memcpy(copy.data(), tensor.data(), num_bytes(tensor));
  return copy;
}

bool fits(const phi::DenseTensor& tensor, const ResultType& type) {
  return tensor.Holder() != nullptr && tensor.dtype() == data_type(type.element) &&
         tensor.dims() == phi::make_ddim(dimensions(type));
}

bool has_capacity(const phi::DenseTensor& tensor, const phi::DenseTensor& other) {
  return tensor.Holder() != nullptr &&
         tensor.Holder()->size() >= tensor.meta().offset + num_bytes(other);
}

bool is_sole_holder(const phi::DenseTensor& copy) {
  return copy.Holder() != nullptr && copy.Holder().use_count() == 2 && copy.meta().offset == 0;
}

}  // namespace paddle_ngraph
