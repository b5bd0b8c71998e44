// Large memory, not initialized.
#pragma once

#include <cstdint>
#include <memory>

namespace paddle_ngraph::mkl_packed {

// `count` floats for std::free. Large ones lie in huge pages where the system has them: the first
// write to each small page takes longer than the work on it.
float* allocate_floats(int64_t count);

// Memory for one call.
class Buffer {
 public:
  explicit Buffer(int64_t count) : memory_(allocate_floats(count)) {}
  float* data() { return memory_.get(); }

 private:
  struct Free {
    void operator()(float* memory) const;
  };

  std::unique_ptr<float, Free> memory_;
};

}  // namespace paddle_ngraph::mkl_packed
