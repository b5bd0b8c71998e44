// Tensors in memory, and the element types that they may have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/common/element_type.h"
#include "core/common/error.h"

namespace native {

using paddle_ngraph::concat;
using paddle_ngraph::ElementType;
using Error = paddle_ngraph::NgraphError;
using Shape = std::vector<size_t>;

// A dense tensor in C order. Copies share the memory, which is not written once it is filled.
struct Tensor {
  ElementType type = ElementType::f32;
  Shape shape;
  std::shared_ptr<char> memory;

  size_t count() const;
  size_t bytes() const;

  template <typename T>
  T* data() const {
    return reinterpret_cast<T*>(memory.get());
  }
};

using Tensors = std::vector<Tensor>;

// A tensor of uninitialized memory, aligned to a cache line. Throws Error as require_memory().
Tensor allocate(ElementType type, const Shape& shape);

// Throws Error for a shape of more bytes than an address space has.
void require_memory(ElementType type, const Shape& shape);

size_t bytes_of(ElementType type);
// The size of a tensor in bytes; the maximum of uint64_t if it would overflow.
uint64_t bytes_of(ElementType type, const Shape& shape);
std::string name_of(ElementType type);            // Paddle's name, e.g. "float32"
ElementType type_named(const std::string& name);  // throws Error for an unknown name
std::string text_of(const Shape& shape);          // e.g. "[2, 3]"
// Text for a terminal or a log, with control characters escaped: names may come from a model.
std::string printable(const std::string& text);

// Calls `use` with a null pointer to the C++ type of the elements. Throws Error if there is none.
template <typename Use>
void with_type(ElementType type, const Use& use) {
  switch (type) {
    case ElementType::boolean:
      return use(static_cast<bool*>(nullptr));
    case ElementType::i8:
      return use(static_cast<int8_t*>(nullptr));
    case ElementType::u8:
      return use(static_cast<uint8_t*>(nullptr));
    case ElementType::i16:
      return use(static_cast<int16_t*>(nullptr));
    case ElementType::i32:
      return use(static_cast<int32_t*>(nullptr));
    case ElementType::i64:
      return use(static_cast<int64_t*>(nullptr));
    case ElementType::f32:
      return use(static_cast<float*>(nullptr));
    case ElementType::f64:
      return use(static_cast<double*>(nullptr));
    default:
      throw Error("there is no arithmetic in " + name_of(type));
  }
}

}  // namespace native
