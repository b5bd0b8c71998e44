// Handles of Paddle's predictors, for which its wheel has no header.
#pragma once

namespace paddle_infer {

// The members of Paddle's class that are called here, as libpaddle exports them.
class Tensor {
 public:
  template <typename T>
  void CopyToCpu(T* data) const;
};

extern template void Tensor::CopyToCpu<float>(float* data) const;

}  // namespace paddle_infer
