// Serves requests of a generated model from 8 threads, through the C API: each thread runs its
// requests independently, and each answer is compared with the first one.
//
//   serve MODEL REQUESTS
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "ngraph_model.h"

namespace {

constexpr int kThreads = 8;
constexpr size_t kOpenSize = 2;  // the size given to each dynamic dimension

struct Input {
  ngraph_array array{};
  std::vector<char> memory;
};

size_t bytes_of(const ngraph_array& array) {
  const std::string dtype = array.dtype;
  size_t bytes = dtype.find("64") != std::string::npos ? 8 : 4;
  if (dtype == "bool" || dtype == "int8" || dtype == "uint8") bytes = 1;
  for (size_t axis = 0; axis < array.rank; ++axis) bytes *= array.shape[axis];
  return bytes;
}

Input zeros(const ngraph_declared& declared) {
  Input made;
  made.array.dtype = declared.dtype;
  made.array.rank = declared.rank;
  for (size_t axis = 0; axis < declared.rank; ++axis) {
    const int64_t size = declared.shape[axis];
    made.array.shape[axis] = size < 0 ? kOpenSize : static_cast<size_t>(size);
  }
  made.memory.resize(bytes_of(made.array) + 1);
  made.array.data = made.memory.data();
  return made;
}

// Runs the model for one request; returns the results as bytes, or an empty string on failure.
std::string answer(ngraph_model* model, const std::vector<ngraph_array>& inputs) {
  std::vector<ngraph_array> results(ngraph_model_num_results(model));
  if (ngraph_model_run(model, inputs.data(), results.data()) != 0) {
    std::fprintf(stderr, "serve: %s\n", ngraph_model_error());
    return "";
  }
  std::string bytes;
  for (auto& result : results) {
    bytes.append(static_cast<const char*>(result.data), bytes_of(result));
    ngraph_array_release(&result);
  }
  return bytes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return std::fprintf(stderr, "usage: serve MODEL REQUESTS\n"), 2;
  const int requests = std::atoi(arguments[2]);
  const ngraph_options options{1, 1};
  ngraph_model* model = ngraph_model_open(arguments[1], &options);
  if (model == nullptr) return std::fprintf(stderr, "serve: %s\n", ngraph_model_error()), 2;
  std::vector<Input> inputs;
  std::vector<ngraph_array> arrays;
  for (size_t i = 0; i < ngraph_model_num_inputs(model); ++i) {
    inputs.push_back(zeros(ngraph_model_input(model, i)));
    arrays.push_back(inputs.back().array);
  }
  const std::string expected = answer(model, arrays);
  std::atomic<int> next{0}, right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      while (next++ < requests) right += !expected.empty() && answer(model, arrays) == expected;
    });
  }
  for (auto& thread : threads) thread.join();
  std::printf("%d of %d right\n", right.load(), requests);
  ngraph_model_close(model);
  return right == requests ? 0 : 1;
}
