// The border between the two libraries. Paddle's side and OpenVINO's side of the core meet here
// only, and no standard string or list crosses it, so that each side can be compiled for the
// libstdc++ ABI of its own wheel.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <typeinfo>
#include <vector>

#include "core/common/element_type.h"

namespace paddle_ngraph {

struct ResultType {
  ElementType element;
  std::vector<size_t> shape;  // empty where the shapes are open
};

struct Input {
  const void* data;
  std::vector<size_t> shape;
};

struct Settings {
  int num_threads = 0;    // 0: every core the process may use
  bool bfloat16 = false;  // where the processor has units for it, instead of float32
  bool fuses_loops = true;
  int parts = 1;    // the model is one of so many parts of a batch: see batch_parts.py
  int streams = 1;  // of which so many are computed at a time
};

// A compiled function as a string of bytes; the memory is only read.
struct Blob {
  std::shared_ptr<const char> memory;
  size_t num_bytes;
};

// An ov::Model compiled for the CPU: all threads work on one request, or a single one where there
// is little to do; where the model is a part of a batch, they share out the parts. Safe to run from
// several threads. One with an empty tensor anywhere is not compiled, and cannot be run.
class OvFunction {
 public:
  // `model` points to an ov::Model. Throws ov::Exception.
  OvFunction(void* model, const Settings& settings);

  // What save() wrote, by the same release; `settings` are those that it had. Throws ov::Exception.
  OvFunction(Blob blob, const Settings& settings);
  ~OvFunction();
  OvFunction(const OvFunction&) = delete;
  OvFunction& operator=(const OvFunction&) = delete;

  // Throws InvalidInput where the model has an empty tensor.
  void require_elements() const;

  const std::vector<ResultType>& results() const;

  // What it was compiled with: one thread for little work, no fused loops where they do not
  // compile.
  const Settings& settings() const;

  // Writes the compiled function to an empty file that is there. Throws NgraphError or
  // ov::Exception.
  void save(const char* path) const;

  // Whether it runs on inputs of many shapes.
  bool has_open_shapes() const;

  // Executes on memory of the caller: one address for each parameter and for each result, whose
  // dtypes and shapes are those of the model, times the parts along axis 0. Throws InvalidInput or
  // ov::Exception.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs);

  // The same where shapes are open: once they are known, `allocate(i, shape)` gives the memory that
  // result i is copied to.
  using Allocate = std::function<void*(size_t index, const std::vector<size_t>& shape)>;
  void run(const std::vector<Input>& inputs, const Allocate& allocate);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Gives the memory back that operators keep from one evaluation to the next.
void clear_workspaces();

// The type that the bindings of OpenVINO hand out models as.
const std::type_info& model_type();

}  // namespace paddle_ngraph
