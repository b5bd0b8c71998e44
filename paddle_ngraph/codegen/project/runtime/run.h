// The interface of the functions in main.cc: a run, and the operators that a program computes
// between its subgraphs.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/tensor.h"

namespace native {

class Model;

// One run of the program: its feeds, variables and results. The functions of blocks pass it on.
class Run {
 public:
  Run(Model* model, const Tensors& feeds);

  const Tensor& feed(const std::string& name) const;

  // The variable of this name, such as a parameter or an optimizer state, which outlives runs.
  Tensor& variable(const std::string& name);

  // Computes a subgraph. New values of states are computed in separate memory; then old and new
  // memory are swapped, and the old memory is reused by the next run.
  Tensors interval(size_t number, const Tensors& inputs, const std::vector<Tensor*>& states = {});

  void fetch(const std::string& name, const Tensor& value);

  // Returns the fetched results, in the order in which the manifest lists them.
  Tensors take_results();

 private:
  Model* model_;
  std::map<std::string, const Tensor*> feeds_;
  std::map<std::string, Tensor> results_;
};

// The generated program: defined in main.cc, called for each run.
void program(Run& run);
std::string program_id();

// A stack of values that a loop or branch in the forward pass saves for the backward pass. An entry
// has the tensors of one push().
class Stack {
 public:
  void push(Tensors values) { entries_.push_back(std::move(values)); }
  Tensors pop();
  Tensor has_elements() const;

 private:
  std::vector<Tensors> entries_;
};

// Whether the only element of a condition is nonzero. Throws Error if there are several elements.
bool is_true(const Tensor& condition);

// Operators that a generated program runs outside of models: Paddle's full, cast, add and so on, on
// operands of one shape or with a single element.
Tensor full(ElementType type, const Shape& shape, double value);
Tensor full_int_array(ElementType type, const std::vector<int64_t>& values);
Tensor cast(const Tensor& x, ElementType type);
Tensor scale(const Tensor& x, const Tensor& factor, double bias, bool bias_after_scale);
Tensor increment(const Tensor& x, double value);
Tensor add(const Tensor& x, const Tensor& y);
Tensor subtract(const Tensor& x, const Tensor& y);
Tensor multiply(const Tensor& x, const Tensor& y);
Tensor minimum(const Tensor& x, const Tensor& y);
Tensor maximum(const Tensor& x, const Tensor& y);
Tensor equal(const Tensor& x, const Tensor& y);
Tensor not_equal(const Tensor& x, const Tensor& y);
Tensor less_than(const Tensor& x, const Tensor& y);
Tensor less_equal(const Tensor& x, const Tensor& y);
Tensor greater_than(const Tensor& x, const Tensor& y);
Tensor greater_equal(const Tensor& x, const Tensor& y);
Tensor logical_and(const Tensor& x, const Tensor& y);
Tensor logical_or(const Tensor& x, const Tensor& y);
Tensor logical_xor(const Tensor& x, const Tensor& y);
Tensor logical_not(const Tensor& x);

}  // namespace native
