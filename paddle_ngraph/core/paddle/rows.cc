#include "core/paddle/rows.h"

#include <cstring>

#include "paddle/phi/api/all.h"

#include "core/common/error.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

std::vector<phi::DenseTensor> split_rows(const phi::DenseTensor& tensor, int64_t parts) {
  const auto& dims = tensor.dims();
  if (parts < 1 || dims.size() == 0 || dims[0] % parts != 0) {
    throw NgraphError(
        concat("a tensor of shape [", dims, "] does not divide into ", parts, " parts"));
  }
  auto shape = common::vectorize(dims);
  shape[0] /= parts;
  const phi::DenseTensorMeta plain(tensor.dtype(), common::make_ddim(shape));
  std::vector<phi::DenseTensor> found;
  for (int64_t i = 0; i < parts; ++i) {
    phi::DenseTensorMeta meta = plain;
    meta.offset = tensor.meta().offset + static_cast<size_t>(i) * (num_bytes(tensor) / parts);
    found.emplace_back(tensor.Holder(), meta);
  }
  return found;
}

phi::DenseTensor concat_rows(const std::vector<const phi::DenseTensor*>& tensors) {
  auto shape = common::vectorize(tensors.at(0)->dims());
  int64_t count = 0;
  for (const auto* tensor : tensors) {
    auto other = common::vectorize(tensor->dims());
    const bool has_rows = !other.empty() && !shape.empty();
    if (has_rows) {
      count += other[0];
      other[0] = shape[0];
    }
    if (!has_rows || other != shape || tensor->dtype() != tensors[0]->dtype()) {
      throw NgraphError(concat("rows of shape [", tensor->dims(), "] do not follow those of [",
                               tensors[0]->dims(), "]"));
    }
  }
  shape[0] = count;
  auto whole = paddle::empty(shape, tensors[0]->dtype(), paddle::CPUPlace());
  auto* to = static_cast<char*>(whole.data());
  for (const auto* tensor : tensors) {
    if (num_bytes(*tensor) > 0) std::memcpy(to, tensor->data(), num_bytes(*tensor));
    to += num_bytes(*tensor);
  }
  return *dense(whole);
}

}  // namespace paddle_ngraph
