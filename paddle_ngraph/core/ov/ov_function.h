// The interface between the two libraries. Paddle's side and OpenVINO's side of the core share only
// this header, and no standard string or list crosses it, so that each side can be compiled for the
// libstdc++ ABI of its own wheel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <typeinfo>
#include <vector>

#include "core/common/element_type.h"
#include "core/common/fork_safe_mutex.h"
#include "core/ov/pinned_values.h"

namespace paddle_ngraph {

struct ResultType {
  ElementType element;
  std::vector<size_t> shape;  // empty if the shape is dynamic: then the run allocates the result
};

struct Input {
  const void* data;
  std::vector<size_t> shape;
};

// The type with which a device computes operators of float32.
enum class Precision : int {
  kFloat32,
  kBfloat16,  // only for processors with bfloat16 units
  kFloat16,   // only for devices other than the CPU
};

// How a function with constant weights holds those of matmuls: see weight_compression.py.
enum class WeightFormat : int {
  kAsGiven,
  kInt8,  // with one scale for each output
  kInt4,  // with a scale for each group of inputs of an output
};

struct Settings {
  int num_threads = 0;  // number of threads of a run; 0: every core the process may use
  Precision precision = Precision::kFloat32;
  WeightFormat weight_format = WeightFormat::kAsGiven;
  bool fuses_loops = true;
  // Number of chunks of a batch, of which the model computes one: see batch_split.py.
  int parts = 1;
  // Groups of threads, each of which computes one chunk or run at a time; 0: the calling thread of
  // a run computes it, for little work.
  int streams = 1;
  // Number of runs expected to be concurrent, each in a group: its chunks are computed one at a
  // time.
  int concurrent_runs = 1;
  // Whether remaining chunks, fewer than the groups, get all threads: from the second run on, which
  // compiles the model once more for them. Not if other runs use the threads concurrently.
  bool shares_remainder = false;
  // The characters of OpenVINO's name for the device; empty: the CPU. Other devices ignore the
  // settings of threads, loops and chunks.
  std::vector<char> device;
  size_t num_pinned = 0;  // number of pinned values; set when the model is compiled
  // Id under which operators record deferred errors; set when the model is compiled.
  int64_t deferred_errors_id = 0;

  // Number of chunks that remain after each group of threads has computed equally many.
  int remainder() const { return shares_remainder && streams > 1 ? parts % streams : 0; }
};

// A compiled function, serialized as bytes that nobody writes.
struct Blob {
  std::shared_ptr<const char> memory;
  size_t num_bytes;
};

// Memory that constants of a model use, with the object that keeps it alive.
struct OwnedMemory {
  const void* data;
  size_t num_bytes;
  std::shared_ptr<void> owner;
};

// An ov::Model compiled for a device. On the CPU all threads work on one request, or a single
// thread for little work; if the model is for one chunk of a batch, the threads divide the chunks
// among themselves, and all of them share the remaining ones. Safe to run from several threads. A
// model with an empty tensor is not compiled, and cannot be run.
//
// If the model ends with a PinValues, and certainly executes no node after it, the pinned values
// stay in the memory of the function (see pin_values_op.h). Else these values are the last results.
class OvFunction {
 public:
  // `model` points to an ov::Model. The function retains the part of `memory` that its constants
  // use; the memory of other constants must be retained by the caller. Throws ov::Exception.
  OvFunction(void* model, const Settings& settings, const std::vector<OwnedMemory>& memory = {});

  // Loads a function from the contents of a file that save() of the same release has written;
  // `settings` are those with which it was saved. Throws ov::Exception.
  OvFunction(Blob blob, const Settings& settings);
  ~OvFunction();
  OvFunction(const OvFunction&) = delete;
  OvFunction& operator=(const OvFunction&) = delete;

  // Throws InvalidInput if the model had an empty tensor when it was built.
  void require_elements() const;

  // The types and shapes of the results that the caller gets: all except pinned values.
  const std::vector<ResultType>& results() const;

  // Whether a parameter of the model has the bytes of elements that OpenVINO would convert.
  bool passes_bytes(size_t parameter) const;

  // Whether the parameters of the model have these types, and admit these shapes, of which axis 0
  // is divided by the number of chunks.
  bool accepts(const std::vector<ResultType>& parameters) const;

  // The settings that the function was compiled with, in place of the requested ones: one thread
  // for little work, no fused loops if they do not compile, and the number of pinned values.
  const Settings& settings() const;

  // Writes the compiled function to `path`, an existing empty file. Throws NgraphError or
  // ov::Exception.
  void save(const char* path) const;

  // Whether some input or result has a dynamic shape.
  bool has_dynamic_shapes() const;

  // Whether a run that is not the first may still prepare data for later runs: pack weights for
  // other shapes, or compile the model for the remaining chunks.
  bool may_pack() const;

  // Executes on the caller's memory, which another device copies from and to: one address for each
  // parameter and for each result, whose dtypes and shapes are those of the model, with axis 0
  // multiplied by the number of chunks. Returns whether there were remaining chunks that all
  // threads shared. `pinned`: receives the addresses of the pinned values, if any; the run then
  // waits until no other run's pinned values are in use. Throws InvalidInput or ov::Exception.
  bool run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           PinnedValues* pinned = nullptr);

  // The overload for dynamic shapes: once they are known, `allocate(i, shape)` returns the memory
  // to which result i is copied.
  using Allocate = std::function<void*(size_t index, const std::vector<size_t>& shape)>;
  bool run(const std::vector<Input>& inputs, const Allocate& allocate);

 private:
  class Implementation;
  const int num_forks_ = fork_count();  // before the process that has built the function
  std::unique_ptr<Implementation> implementation_;
};

// Changes a model as a compilation for the CPU does, and passes the names and values of the
// properties that it would be compiled with.
using ReceiveProperty = std::function<void(const char* name, const char* value)>;
void prepare_for_cpu(void* model, Settings settings, const ReceiveProperty& receive);

// The C++ type of the models that OpenVINO's Python bindings wrap.
const std::type_info& model_type();

}  // namespace paddle_ngraph
