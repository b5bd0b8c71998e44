// Element types: the single table of types that the engine and Paddle share.
#pragma once

#include <array>

namespace paddle_ngraph {

enum class ElementType { boolean, i8, u8, i16, i32, i64, f16, bf16, f32, f64 };

struct ElementNames {
  ElementType element;
  const char* ngraph;
  const char* paddle;
  bool has_numpy_name = true;  // whether `paddle` is also the name of a NumPy type
};

constexpr std::array<ElementNames, 10> kElementTypes{{
    {ElementType::boolean, "boolean", "bool"},
    {ElementType::i8, "i8", "int8"},
    {ElementType::u8, "u8", "uint8"},
    {ElementType::i16, "i16", "int16"},
    {ElementType::i32, "i32", "int32"},
    {ElementType::i64, "i64", "int64"},
    {ElementType::f16, "f16", "float16"},
    {ElementType::bf16, "bf16", "bfloat16", false},
    {ElementType::f32, "f32", "float32"},
    {ElementType::f64, "f64", "float64"},
}};

}  // namespace paddle_ngraph
