#include "core/ov/kernel_call_op.h"

#include <algorithm>
#include <array>
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

std::vector<int64_t> sizes_of(const ov::PartialShape& shape) {
  std::vector<int64_t> found;
  for (const auto& dim : shape) found.push_back(dim.is_static() ? dim.get_length() : -1);
  return found;
}

bool is_open(const std::vector<int64_t>& shape) {
  return std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; });
}

KernelTensor view(const ov::Tensor& tensor) {
  const ov::Shape shape = tensor.get_shape();
  return {element_of(tensor.get_element_type()),
          {shape.begin(), shape.end()},
          tensor.get_size() == 0 ? nullptr : const_cast<void*>(tensor.data())};
}

}  // namespace

void set_paddle_kernels(MakePaddleKernel make) { make_kernel = make; }

void KernelCall::infer() {
  if (attributes().made == nullptr) {
    require(make_kernel != nullptr, "this process has no kernels of Paddle");
    attributes().made = make_kernel(attributes().kernel.c_str());
  }
  std::vector<KernelTensor> inputs;
  for (size_t i = 0; i < get_input_size(); ++i) {
    const auto& shape = get_input_partial_shape(i);
    require(shape.rank().is_static(), "input ", i, " has an unknown rank");
    inputs.push_back({element_of(get_input_element_type(i)), sizes_of(shape)});
  }
  auto results = attributes().made->infer(inputs);
  if (!attributes().shapes.empty()) {
    std::vector<std::vector<int64_t>> given;
    for (auto& input : inputs) given.push_back(std::move(input.shape));
    auto shapes = shapes_for(given);
    require(shapes.size() == results.size(), "has shapes of another number of results");
    for (size_t i = 0; i < results.size(); ++i) results[i].shape = std::move(shapes[i]);
  }
  set_output_size(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& shape = results[i].shape;
    set_output_type(i, type_of(results[i].element),
                    std::vector<ov::Dimension>(shape.begin(), shape.end()));
  }
}

class KernelCall::Words {
 public:
  explicit Words(const KernelCall& node)
      : node_(node),
        next_(node.attributes().shapes.begin()),
        end_(node.attributes().shapes.end()) {}

  bool has_more() const { return next_ != end_; }

  int64_t next() {
    node_.require(has_more(), "has a shape that ends early");
    return *next_++;
  }

  // The number of elements of a list that follows.
  int64_t count() {
    const int64_t found = next();
    node_.require(0 <= found && found <= end_ - next_, "has a shape that ends early");
    return found;
  }

 private:
  const KernelCall& node_;
  std::vector<int64_t>::const_iterator next_, end_;
};

std::vector<std::vector<int64_t>> KernelCall::shapes_for(
    const std::vector<std::vector<int64_t>>& inputs) const {
  std::vector<std::vector<int64_t>> found;
  for (Words words(*this); words.has_more();) {
    const int64_t rank = words.count();
    found.emplace_back();
    for (int64_t i = 0; i < rank; ++i) found.back().push_back(size_by(&words, inputs));
  }
  return found;
}

std::optional<int64_t> KernelCall::term_by(Words* words,
                                           const std::vector<std::vector<int64_t>>& inputs) const {
  int64_t product = 1;
  bool is_open = false;
  for (int64_t places = words->count(); places > 0; --places) {
    const int64_t input = words->next(), axis = words->next();
    require(0 <= input && static_cast<size_t>(input) < inputs.size() && 0 <= axis &&
                static_cast<size_t>(axis) < inputs[input].size(),
            "has a size of an input that it lacks");
    const int64_t size = inputs[input][axis];
    is_open = is_open || size < 0;
    require(!__builtin_mul_overflow(product, size, &product), "has a size beyond 64 bits");
  }
  require(!__builtin_mul_overflow(product, words->next(), &product), "has a size beyond 64 bits");
  return is_open ? std::nullopt : std::optional(product);
}

int64_t KernelCall::size_by(Words* words, const std::vector<std::vector<int64_t>>& inputs) const {
  int64_t size = 0;
  bool is_open = false;
  for (int64_t terms = words->count(); terms > 0; --terms) {
    const auto term = term_by(words, inputs);
    is_open = is_open || !term;
    require(!__builtin_add_overflow(size, term.value_or(0), &size), "has a size beyond 64 bits");
  }
  const int64_t offset = words->next(), divisor = words->next();
  require(divisor > 0, "has a size without a divisor");
  require(!__builtin_add_overflow(size, offset, &size), "has a size beyond 64 bits");
  // A negative sum has no shape: the kernel rejects such operands.
  return is_open || size < 0 ? kOpenSize : size / divisor;
}

std::vector<std::vector<int64_t>> KernelCall::shapes_in_run(const ov::TensorVector& inputs) const {
  std::vector<std::vector<int64_t>> found;
  if (attributes().shapes.empty()) {
    for (size_t i = 0; i < get_output_size(); ++i) {
      found.push_back(sizes_of(get_output_partial_shape(i)));
    }
    return found;
  }
  std::vector<std::vector<int64_t>> given;
  for (const auto& input : inputs) {
    const auto shape = input.get_shape();
    given.emplace_back(shape.begin(), shape.end());
  }
  return shapes_for(given);
}

void KernelCall::compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  try {
    run(inputs, outputs);
  } catch (const NgraphError& error) {
    report_error(attributes().deferred_errors_id,
                 InvalidInput(error.what(), error.code(), attributes().op_id));
    fill_with_zeros(inputs, outputs);
  }
}

void KernelCall::run(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  std::vector<KernelTensor> operands, results;
  operands.reserve(inputs.size());
  results.reserve(outputs->size());
  for (const auto& input : inputs) operands.push_back(view(input));
  auto shapes = shapes_in_run(inputs);
  for (size_t i = 0; i < outputs->size(); ++i) {
    auto& output = (*outputs)[i];
    if (!is_open(shapes[i])) output.set_shape(ov::Shape(shapes[i].begin(), shapes[i].end()));
    results.push_back(view(output));
    results.back().shape = std::move(shapes[i]);
  }
  attributes().made->run(operands, results, [&](size_t i, const std::vector<int64_t>& shape) {
    auto& output = (*outputs)[i];
    output.set_shape(ov::Shape(shape.begin(), shape.end()));
    return output.get_size() == 0 ? nullptr : output.data();
  });
}

// Zeros for all outputs, none for one whose size is unknown, after an error that was deferred.
void KernelCall::fill_with_zeros(const ov::TensorVector& inputs, ov::TensorVector* outputs) const {
  const auto shapes = shapes_in_run(inputs);
  for (size_t i = 0; i < outputs->size(); ++i) {
    ov::Shape shape;
    for (const int64_t size : shapes[i]) shape.push_back(size < 0 ? 0 : size);
    (*outputs)[i].set_shape(shape);
    if ((*outputs)[i].get_size() == 0) continue;
    std::memset((*outputs)[i].data(), 0, (*outputs)[i].get_byte_size());
  }
}

}  // namespace paddle_ngraph
