#include "runtime/tensor.h"

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <numeric>

namespace native {

namespace {

constexpr size_t kAlignment = 64;
constexpr uint64_t kMaxBytes = PTRDIFF_MAX - kAlignment;

const paddle_ngraph::ElementNames& row_of(ElementType type) {
  return paddle_ngraph::kElementTypes.at(static_cast<size_t>(type));
}

}  // namespace

size_t bytes_of(ElementType type) { return row_of(type).bytes; }

uint64_t bytes_of(ElementType type, const Shape& shape) {
  uint64_t bytes = bytes_of(type);
  for (size_t size : shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::numeric_limits<uint64_t>::max();
  }
  return bytes;
}

std::string name_of(ElementType type) { return row_of(type).paddle; }

ElementType type_named(const std::string& name) {
  for (const auto& row : paddle_ngraph::kElementTypes) {
    if (name == row.paddle) return row.element;
  }
  throw Error(concat("there is no dtype '", name, "'"));
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (size_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

std::string printable(const std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto code = static_cast<unsigned char>(text[i]);
    // In UTF-8, the control characters from U+0080 to U+009F are 0xc2 and another byte.
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool is_wide = code == 0xc2 && next >= 0x80 && next < 0xa0;
    if (code >= 0x20 && code != 0x7f && !is_wide) {
      result += text[i];
    } else {
      const unsigned char shown = is_wide ? next : code;
      result += {'\\', 'x', kDigits[shown / 16], kDigits[shown % 16]};
      if (is_wide) ++i;
    }
  }
  return result;
}

size_t Tensor::count() const {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

size_t Tensor::bytes() const { return count() * bytes_of(type); }

void require_memory(ElementType type, const Shape& shape) {
  if (bytes_of(type, shape) > kMaxBytes) {
    throw Error(concat("no memory holds ", name_of(type), " ", text_of(shape)));
  }
}

Tensor allocate(ElementType type, const Shape& shape) {
  require_memory(type, shape);
  Tensor result{type, shape, nullptr};
  const size_t bytes = (result.bytes() + kAlignment) / kAlignment * kAlignment;
  auto* memory = static_cast<char*>(std::aligned_alloc(kAlignment, bytes));
  if (memory == nullptr) throw std::bad_alloc();
  result.memory.reset(memory, std::free);
  return result;
}

}  // namespace native
