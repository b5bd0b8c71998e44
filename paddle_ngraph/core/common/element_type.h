// Element types: the single table of types that the engine and Paddle share.
#pragma once

#include <array>
#include <cstddef>

namespace paddle_ngraph {

// nGraph has no complex types: functions have tensors of c64 and c128 as bytes (conversion/
// kernel_calls.py).
enum class ElementType { boolean, i8, u8, i16, i32, i64, f16, bf16, f32, f64, c64, c128 };

struct ElementNames {
  ElementType element;
  const char* ngraph;
  const char* paddle;
  size_t bytes;
  bool has_numpy_name = true;  // whether `paddle` is also the name of a NumPy type
};

constexpr std::array<ElementNames, 12> kElementTypes{{
    {ElementType::boolean, "boolean", "bool", 1},
    {ElementType::i8, "i8", "int8", 1},
    {ElementType::u8, "u8", "uint8", 1},
    {ElementType::i16, "i16", "int16", 2},
    {ElementType::i32, "i32", "int32", 4},
    {ElementType::i64, "i64", "int64", 8},
    {ElementType::f16, "f16", "float16", 2},
    {ElementType::bf16, "bf16", "bfloat16", 2, false},
    {ElementType::f32, "f32", "float32", 4},
    {ElementType::f64, "f64", "float64", 8},
    {ElementType::c64, "c64", "complex64", 8},
    {ElementType::c128, "c128", "complex128", 16},
}};

}  // namespace paddle_ngraph
