#include "core/ov/kernel_call_op.h"

#include <cstring>
#include <utility>

namespace paddle_ngraph {

namespace {

MakePaddleKernel make_kernel = nullptr;

ElementType element_of(const ov::element::Type& type) {
  const std::string name = type.to_string();
  for (const auto& row : kElementTypes) {
    if (name == row.ngraph) return row.element;
  }
  throw NgraphError(concat("Paddle has no tensors of ", type));
}

ov::element::Type type_of(ElementType element) {
  for (const auto& row : kElementTypes) {
    if (row.element == element) return ov::element::Type(row.ngraph);
  }
  throw NgraphError("a result has no nGraph element type");
}

int64_t size_of(const ov::Dimension& dim) { return dim.is_static() ? dim.get_length() : -1; }

KernelTensor view(const ov::Tensor& tensor) {
  const ov::Shape shape = tensor.get_shape();
  return {element_of(tensor.get_element_type()),
          {shape.begin(), shape.end()},
          tensor.get_size() == 0 ? nullptr : const_cast<void*>(tensor.data())};
}

}  // namespace

void set_paddle_kernels(MakePaddleKernel make) { make_kernel = make; }

void KernelCall::infer() {
  if (kernel_ == nullptr) {
    require(make_kernel != nullptr, "this process has no kernels of Paddle");
    kernel_ = make_kernel(attributes().kernel.c_str());
  }
  std::vector<KernelTensor> inputs;
  for (size_t i = 0; i < get_input_size(); ++i) {
    const auto& shape = get_input_partial_shape(i);
    require(shape.rank().is_static(), "input ", i, " has an unknown rank");
    KernelTensor input{element_of(get_input_element_type(i)), {}};
    for (const auto& dim : shape) input.shape.push_back(size_of(dim));
    inputs.push_back(std::move(input));
  }
  const auto results = kernel_->infer(inputs);
  set_output_size(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& shape = results[i].shape;
    set_output_type(i, type_of(results[i].element),
                    std::vector<ov::Dimension>(shape.begin(), shape.end()));
  }
}

void KernelCall::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  try {
    run(inputs, outputs);
  } catch (const NgraphError& error) {
    report_error(attributes().deferred_errors_id,
                 InvalidInput(error.what(), error.code(), attributes().op_id));
    fill_with_zeros(outputs);
  }
}

void KernelCall::run(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  std::vector<KernelTensor> operands, results;
  operands.reserve(inputs.size());
  results.reserve(outputs->size());
  for (const auto& input : inputs) operands.push_back(view(input));
  for (size_t i = 0; i < outputs->size(); ++i) {
    results.push_back(view((*outputs)[i]));
    const auto& shape = get_output_partial_shape(i);
    if (shape.is_static()) continue;
    results.back().shape.clear();
    for (const auto& dim : shape) results.back().shape.push_back(size_of(dim));
  }
  kernel_->run(operands, results, [&](size_t i, const std::vector<int64_t>& shape) {
    auto& output = (*outputs)[i];
    output.set_shape(ov::Shape(shape.begin(), shape.end()));
    return output.get_size() == 0 ? nullptr : output.data();
  });
}

// Zeros for all outputs, none for one whose size is unknown, after an error that was deferred.
void KernelCall::fill_with_zeros(ov::TensorVector* outputs) const {
  for (size_t i = 0; i < outputs->size(); ++i) {
    ov::Shape shape;
    for (const auto& dim : get_output_partial_shape(i)) {
      shape.push_back(dim.is_static() ? dim.get_length() : 0);
    }
    (*outputs)[i].set_shape(shape);
    if ((*outputs)[i].get_size() == 0) continue;
    std::memset((*outputs)[i].data(), 0, (*outputs)[i].get_byte_size());
  }
}

}  // namespace paddle_ngraph
