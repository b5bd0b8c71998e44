#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "ngraph_model.h"
#include "runtime/model.h"

struct ngraph_model {
  native::Model model;
};

namespace native {

namespace {

thread_local std::string failure;

// Calls `work`. If it throws, stores the error message and returns `otherwise`.
template <typename Work, typename Result>
Result guarded(Result otherwise, const Work& work) {
  try {
    return work();
  } catch (const std::exception& error) {
    failure = printable(error.what());
  } catch (...) {
    failure = "an unknown error";
  }
  return otherwise;
}

const char* dtype_of(ElementType type) {
  return paddle_ngraph::kElementTypes.at(static_cast<size_t>(type)).paddle;
}

ngraph_declared described(const std::vector<Declared>& all, size_t number, const char* what) {
  if (number >= all.size()) throw Error(concat("there is no ", what, " ", number));
  const Declared& declared = all[number];
  ngraph_declared result{declared.name.c_str(), dtype_of(declared.type), declared.shape.size(), {}};
  std::copy(declared.shape.begin(), declared.shape.end(), result.shape);
  return result;
}

// Throws Error if an argument of the C API is null.
template <typename T>
void require(const T* given, const char* what) {
  if (given == nullptr) throw Error(concat(what, " is NULL"));
}

// A tensor in the caller's memory, which is only read, during a run. The tensor has no owner, so
// that the memory is never reused for results of the next run (Variant::take).
Tensor borrowed(const ngraph_array& array) {
  if (array.dtype == nullptr || array.rank > NGRAPH_MODEL_MAX_RANK) {
    throw Error("an input has no dtype, or too many dimensions");
  }
  const Shape shape(array.shape, array.shape + array.rank);
  std::shared_ptr<char> memory(std::shared_ptr<char>(), static_cast<char*>(array.data));
  Tensor result{type_named(array.dtype), shape, std::move(memory)};
  if (bytes_of(result.type, shape) > PTRDIFF_MAX) throw Error("an input has too many elements");
  if (array.data == nullptr && result.count() > 0) throw Error("an input has no data");
  return result;
}

ngraph_array copied(const Tensor& tensor) {
  if (tensor.shape.size() > NGRAPH_MODEL_MAX_RANK) throw Error("a result has too many dimensions");
  ngraph_array result{
      dtype_of(tensor.type), tensor.shape.size(), {}, std::malloc(tensor.bytes() + 1)};
  if (result.data == nullptr) throw std::bad_alloc();
  std::copy(tensor.shape.begin(), tensor.shape.end(), result.shape);
  std::memcpy(result.data, tensor.memory.get(), tensor.bytes());
  return result;
}

const Model& opened(const ngraph_model* model) {
  require(model, "the model");
  return model->model;
}

int run(Model* model, const ngraph_array* inputs, ngraph_array* results) {
  if (!model->inputs().empty()) require(inputs, "the list of inputs");
  if (!model->results().empty()) require(results, "the list of results");
  Tensors feeds;
  for (size_t i = 0; i < model->inputs().size(); ++i) feeds.push_back(borrowed(inputs[i]));
  std::vector<ngraph_array> outputs;
  try {
    for (const auto& tensor : model->run(feeds)) outputs.push_back(copied(tensor));
  } catch (...) {
    for (auto& array : outputs) std::free(array.data);
    throw;
  }
  std::copy(outputs.begin(), outputs.end(), results);
  return 0;
}

}  // namespace

}  // namespace native

using native::guarded;

ngraph_model* ngraph_model_open(const char* folder, const ngraph_options* options) {
  return guarded<>(static_cast<ngraph_model*>(nullptr), [&] {
    native::require(folder, "the folder");
    native::Options native_options;
    if (options != nullptr) {
      native_options.threads = {std::max(0, options->threads), std::max(1, options->streams)};
    }
    return new ngraph_model{native::Model(folder, native_options)};
  });
}

size_t ngraph_model_num_inputs(const ngraph_model* model) {
  return guarded<>(size_t{0}, [&] { return native::opened(model).inputs().size(); });
}

size_t ngraph_model_num_results(const ngraph_model* model) {
  return guarded<>(size_t{0}, [&] { return native::opened(model).results().size(); });
}

ngraph_declared ngraph_model_input(const ngraph_model* model, size_t number) {
  return guarded<>(ngraph_declared{}, [&] {
    return native::described(native::opened(model).inputs(), number, "input");
  });
}

ngraph_declared ngraph_model_result(const ngraph_model* model, size_t number) {
  return guarded<>(ngraph_declared{}, [&] {
    return native::described(native::opened(model).results(), number, "result");
  });
}

int ngraph_model_run(ngraph_model* model, const ngraph_array* inputs, ngraph_array* results) {
  return guarded<>(1, [&] {
    native::opened(model);
    return native::run(&model->model, inputs, results);
  });
}

void ngraph_array_release(ngraph_array* array) {
  if (array == nullptr) return;
  std::free(array->data);
  array->data = nullptr;
}

void ngraph_model_close(ngraph_model* model) { delete model; }

const char* ngraph_model_error(void) { return native::failure.c_str(); }
