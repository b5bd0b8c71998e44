#include "runtime/run.h"

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "runtime/model.h"

namespace native {

Run::Run(Model* model, const Tensors& feeds) : model_(model) {
  for (size_t i = 0; i < feeds.size(); ++i) feeds_[model->inputs()[i].name] = &feeds[i];
}

namespace {

// The value of a map for a name. Throws Error if missing: the manifest was modified.
template <typename Map>
auto& named(Map& map, const std::string& name) {
  const auto found = map.find(name);
  if (found == map.end())
    throw Error(concat("main.cc and the manifest do not agree about '", name, "'"));
  return found->second;
}

}  // namespace

const Tensor& Run::feed(const std::string& name) const { return *named(feeds_, name); }

Tensor& Run::variable(const std::string& name) { return named(model_->values_, name); }

Tensors Run::interval(size_t number, const Tensors& inputs, const std::vector<Tensor*>& states) {
  std::vector<const Tensor*> given;
  for (const auto& input : inputs) given.push_back(&input);
  given.insert(given.end(), states.begin(), states.end());
  if (number >= model_->functions_.size())
    throw Error("main.cc and the manifest do not agree about functions");
  Function& function = model_->functions_[number];
  Variant& variant = function.variant(given);
  if (variant.num_states() != states.size())
    throw Error("main.cc and the manifest do not agree about the states of a function");
  Tensors results = function.run(&variant, given, &model_->stream_);
  const size_t num_outputs = results.size() - states.size();
  for (size_t i = 0; i < states.size(); ++i) {
    std::swap(*states[i], results[num_outputs + i]);
    variant.recycle(num_outputs + i, std::move(results[num_outputs + i]));
  }
  results.resize(num_outputs);
  for (size_t i = 0; i < num_outputs; ++i) variant.recycle(i, results[i]);
  return results;
}

void Run::fetch(const std::string& name, const Tensor& value) { results_[name] = value; }

Tensors Run::take_results() {
  Tensors taken;
  for (const auto& result : model_->results()) taken.push_back(named(results_, result.name));
  return taken;
}

Tensors Stack::pop() {
  if (entries_.empty()) throw Error("a stack has no more entries");
  Tensors last = std::move(entries_.back());
  entries_.pop_back();
  return last;
}

Tensor Stack::has_elements() const {
  return full(ElementType::boolean, {1}, entries_.empty() ? 0.0 : 1.0);
}

bool is_true(const Tensor& condition) {
  if (condition.count() != 1) throw Error("a condition has to be one element");
  return cast(condition, ElementType::boolean).data<bool>()[0];
}

namespace {

template <typename T>
void fill(const Tensor& tensor, T value) {
  std::fill_n(tensor.data<T>(), tensor.count(), value);
}

// Calls compute(x[i], y[i]) for each element; an operand with a single element is broadcast.
template <typename Result, typename T, typename Compute>
void map(const Tensor& x, const Tensor& y, const Tensor& result, const Compute& compute) {
  const size_t step_x = x.count() == 1 ? 0 : 1, step_y = y.count() == 1 ? 0 : 1;
  auto* out = result.data<Result>();
  for (size_t i = 0; i < result.count(); ++i) {
    out[i] = static_cast<Result>(compute(x.data<T>()[i * step_x], y.data<T>()[i * step_y]));
  }
}

Shape joined_shape(const Tensor& x, const Tensor& y) {
  if (x.type != y.type) throw Error("two operands have different dtypes");
  if (x.shape == y.shape) return x.shape;
  const bool is_first = y.count() == 1 && x.shape.size() >= y.shape.size();
  if (!is_first && (x.count() != 1 || y.shape.size() < x.shape.size())) {
    throw Error(concat("operands have the shapes ", text_of(x.shape), " and ", text_of(y.shape)));
  }
  return is_first ? x.shape : y.shape;
}

template <typename Compute>
Tensor arithmetic(const Tensor& x, const Tensor& y, const Compute& compute) {
  const Tensor result = allocate(x.type, joined_shape(x, y));
  with_type(x.type, [&](auto* kind) {
    using T = std::remove_pointer_t<decltype(kind)>;
    map<T, T>(x, y, result, compute);
  });
  return result;
}

template <typename Compute>
Tensor comparison(const Tensor& x, const Tensor& y, const Compute& compute) {
  const Tensor result = allocate(ElementType::boolean, joined_shape(x, y));
  with_type(x.type, [&](auto* kind) {
    using T = std::remove_pointer_t<decltype(kind)>;
    map<bool, T>(x, y, result, compute);
  });
  return result;
}

}  // namespace

Tensor full(ElementType type, const Shape& shape, double value) {
  const Tensor out = allocate(type, shape);
  with_type(type, [&](auto* kind) {
    fill(out, static_cast<std::remove_pointer_t<decltype(kind)>>(value));
  });
  return out;
}

Tensor full_int_array(ElementType type, const std::vector<int64_t>& values) {
  const Tensor out = allocate(type, {values.size()});
  with_type(type, [&](auto* kind) {
    using T = std::remove_pointer_t<decltype(kind)>;
    std::transform(values.begin(), values.end(), out.data<T>(),
                   [](int64_t value) { return static_cast<T>(value); });
  });
  return out;
}

Tensor cast(const Tensor& x, ElementType type) {
  if (x.type == type) return x;
  const Tensor out = allocate(type, x.shape);
  with_type(x.type, [&](auto* from) {
    with_type(type, [&](auto* to) {
      using To = std::remove_pointer_t<decltype(to)>;
      map<To, std::remove_pointer_t<decltype(from)>>(
          x, x, out, [](auto a, auto) { return static_cast<To>(a); });
    });
  });
  return out;
}

Tensor scale(const Tensor& x, const Tensor& factor, double bias, bool bias_after_scale) {
  Tensor by = cast(factor, x.type);
  // A factor of any shape has one element: as a scalar, it does not affect the shape of the result.
  by.shape = {};
  const Tensor more = full(x.type, {}, bias);
  return bias_after_scale ? add(multiply(x, by), more) : multiply(add(x, more), by);
}

Tensor increment(const Tensor& x, double value) { return add(x, full(x.type, {}, value)); }

Tensor add(const Tensor& x, const Tensor& y) {
  return arithmetic(x, y, [](auto a, auto b) { return a + b; });
}

Tensor subtract(const Tensor& x, const Tensor& y) {
  return arithmetic(x, y, [](auto a, auto b) { return a - b; });
}

Tensor multiply(const Tensor& x, const Tensor& y) {
  return arithmetic(x, y, [](auto a, auto b) { return a * b; });
}

Tensor minimum(const Tensor& x, const Tensor& y) {
  return arithmetic(x, y, [](auto a, auto b) { return b < a ? b : a; });
}

Tensor maximum(const Tensor& x, const Tensor& y) {
  return arithmetic(x, y, [](auto a, auto b) { return a < b ? b : a; });
}

Tensor equal(const Tensor& x, const Tensor& y) { return comparison(x, y, std::equal_to<>()); }

Tensor not_equal(const Tensor& x, const Tensor& y) {
  return comparison(x, y, std::not_equal_to<>());
}

Tensor less_than(const Tensor& x, const Tensor& y) { return comparison(x, y, std::less<>()); }

Tensor less_equal(const Tensor& x, const Tensor& y) {
  return comparison(x, y, std::less_equal<>());
}

Tensor greater_than(const Tensor& x, const Tensor& y) { return less_than(y, x); }

Tensor greater_equal(const Tensor& x, const Tensor& y) { return less_equal(y, x); }

Tensor logical_and(const Tensor& x, const Tensor& y) {
  return comparison(cast(x, ElementType::boolean), cast(y, ElementType::boolean),
                    std::logical_and<>());
}

Tensor logical_or(const Tensor& x, const Tensor& y) {
  return comparison(cast(x, ElementType::boolean), cast(y, ElementType::boolean),
                    std::logical_or<>());
}

Tensor logical_xor(const Tensor& x, const Tensor& y) {
  return comparison(cast(x, ElementType::boolean), cast(y, ElementType::boolean),
                    std::not_equal_to<>());
}

Tensor logical_not(const Tensor& x) {
  const Tensor given = cast(x, ElementType::boolean);
  return comparison(given, given, [](bool a, bool) { return !a; });
}

}  // namespace native
