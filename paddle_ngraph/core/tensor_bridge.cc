#include "tensor_bridge.h"

#include "error.h"

namespace paddle_ngraph {

namespace {

struct TypePair {
  paddle::DataType paddle_type;
  ov::element::Type ov_type;
};

const std::vector<TypePair>& type_table() {
  static const std::vector<TypePair> table{
      {paddle::DataType::BOOL, ov::element::boolean}, {paddle::DataType::INT8, ov::element::i8},
      {paddle::DataType::UINT8, ov::element::u8},     {paddle::DataType::INT16, ov::element::i16},
      {paddle::DataType::INT32, ov::element::i32},    {paddle::DataType::INT64, ov::element::i64},
      {paddle::DataType::FLOAT16, ov::element::f16},  {paddle::DataType::BFLOAT16, ov::element::bf16},
      {paddle::DataType::FLOAT32, ov::element::f32},  {paddle::DataType::FLOAT64, ov::element::f64},
  };
  return table;
}

}  // namespace

ov::element::Type to_element_type(paddle::DataType dtype) {
  for (const auto& pair : type_table()) {
    if (pair.paddle_type == dtype) return pair.ov_type;
  }
  throw NgraphError(concat("the dtype ", dtype, " has no nGraph element type"));
}

paddle::DataType to_data_type(const ov::element::Type& type) {
  for (const auto& pair : type_table()) {
    if (pair.ov_type == type) return pair.paddle_type;
  }
  throw NgraphError(concat("the nGraph element type ", type, " has no Paddle dtype"));
}

phi::DenseTensor* dense(const paddle::Tensor& tensor) {
  return static_cast<phi::DenseTensor*>(tensor.impl().get());
}

ov::Tensor view(const phi::DenseTensor& tensor) {
  const auto& dims = tensor.dims();
  ov::Shape shape(dims.size());
  for (int i = 0; i < dims.size(); ++i) shape[i] = static_cast<size_t>(dims[i]);
  return ov::Tensor(to_element_type(tensor.dtype()), shape, const_cast<void*>(tensor.data()));
}

paddle::Tensor allocate(const ov::Shape& shape, const ov::element::Type& type) {
  return paddle::empty(std::vector<int64_t>(shape.begin(), shape.end()), to_data_type(type),
                       paddle::CPUPlace());
}

}  // namespace paddle_ngraph
