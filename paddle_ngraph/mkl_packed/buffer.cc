#include "mkl_packed/buffer.h"

#include <cstdlib>
#include <new>

#include <sys/mman.h>

namespace paddle_ngraph::mkl_packed {

float* allocate_floats(int64_t count) {
  constexpr size_t kLine = 64, kHugePage = size_t{2} << 20;
  const size_t wanted = count * sizeof(float) + kLine;  // never nothing
  const size_t alignment = wanted < kHugePage ? kLine : kHugePage;
  const size_t size = (wanted + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, size);
  if (memory == nullptr) throw std::bad_alloc();
  if (alignment == kHugePage) madvise(memory, size, MADV_HUGEPAGE);  // a wish
  return static_cast<float*>(memory);
}

void Buffer::Free::operator()(float* memory) const { std::free(memory); }

}  // namespace paddle_ngraph::mkl_packed
