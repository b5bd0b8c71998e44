// Declares the tensor handles of Paddle's predictors, for which Paddle's wheel has no header.
#pragma once

namespace paddle_infer {

// Only the members that are called here, with the symbols that libpaddle exports.
class Tensor {
 public:
  template <typename T>
  void CopyToCpu(T* data) const;
};

extern template void Tensor::CopyToCpu<float>(float* data) const;

}  // namespace paddle_infer
