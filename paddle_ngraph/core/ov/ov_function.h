// The boundary between the two libraries. Paddle's side and OpenVINO's side of the core meet only
// here, and no standard string or list crosses it, so that each side can be compiled for the
// libstdc++ ABI of its own wheel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <typeinfo>
#include <vector>

#include "core/common/element_type.h"
#include "core/ov/pinned_values.h"

namespace paddle_ngraph {

struct ResultType {
  ElementType element;
  std::vector<size_t> shape;  // empty where the shapes are open
};

struct Input {
  const void* data;
  std::vector<size_t> shape;
};

// What a device computes float32 in.
enum class Precision : int {
  kFloat32,
  kBfloat16,  // where the processor has units for it
  kFloat16,   // on devices other than the CPU
};

struct Settings {
  int num_threads = 0;  // 0: every core the process may use
  Precision precision = Precision::kFloat32;
  bool fuses_loops = true;
  int parts = 1;  // the model is one of so many parts of a batch: see batch_split.py
  // Groups of threads, each of which computes one part or run at a time; 0: the thread that asks
  // for a run computes it, as there is little to do.
  int streams = 1;
  // So many runs are meant to go on at the same time, each in a group: its parts follow each other.
  int concurrent_runs = 1;
  // Parts that are left over, fewer than there are groups, get all threads: from the second run on,
  // which compiles the model once more for them. Not where other runs use the threads meanwhile.
  bool shares_remainder = false;
  // The characters of OpenVINO's name for the device; none: the CPU. Others have no use for what is
  // said of threads, loops and parts.
  std::vector<char> device;
  size_t num_pinned = 0;           // so many values: set by compiling
  int64_t deferred_errors_id = 0;  // the number of what its operators find: set by compiling

  // How many parts are left over when each group has computed as many as every other.
  int remainder() const { return shares_remainder && streams > 1 ? parts % streams : 0; }
};

// A compiled function as a string of bytes; the memory is only read.
struct Blob {
  std::shared_ptr<const char> memory;
  size_t num_bytes;
};

// Memory that constants of a model are in, and what keeps it.
struct OwnedMemory {
  const void* data;
  size_t num_bytes;
  std::shared_ptr<void> owner;
};

// An ov::Model compiled for a device. On the CPU all threads work on one request, or a single one
// if there is little to do; if the model is for a part of a batch, the threads share the parts
// among them, and all of them those that are left over. Safe to run from several threads. A model
// with an empty tensor anywhere is not compiled, and cannot be run.
//
// If the model ends with a PinValues, and it is sure that nothing is computed after that, what it
// holds stays in the memory of the function (see pin_values_op.h). Else these values are the last
// results.
class OvFunction {
 public:
  // `model` points to an ov::Model. The function keeps as much of `memory` as it has constants
  // there; the memory of other constants is for the caller to keep. Throws ov::Exception.
  OvFunction(void* model, const Settings& settings, const std::vector<OwnedMemory>& memory = {});

  // Loads what save() of the same release wrote; `settings` are those it was saved with. Throws
  // ov::Exception.
  OvFunction(Blob blob, const Settings& settings);
  ~OvFunction();
  OvFunction(const OvFunction&) = delete;
  OvFunction& operator=(const OvFunction&) = delete;

  // Throws InvalidInput if the model has an empty tensor.
  void require_elements() const;

  // Without what it holds.
  const std::vector<ResultType>& results() const;

  // What it was compiled with: one thread for little work, no fused loops if they do not compile,
  // and what it holds.
  const Settings& settings() const;

  // Writes the compiled function to an existing, empty file. Throws NgraphError or ov::Exception.
  void save(const char* path) const;

  // Whether the shapes of its inputs or results are known only when it runs.
  bool has_dynamic_shapes() const;

  // Whether a run may make something of constants that later runs use, though there was one: packs
  // weights for other shapes, or compiles for parts that are left over.
  bool may_pack() const;

  // Executes on the caller's memory, which another device copies from and to: one address for each
  // parameter and for each result, whose dtypes and shapes are those of the model, with axis 0
  // multiplied by the number of parts. Returns whether there were parts left over that all threads
  // shared. `pinned`: where the values go that the function holds, if any; it waits for its turn.
  // Throws InvalidInput or ov::Exception.
  bool run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs,
           PinnedValues* pinned = nullptr);

  // The same for open shapes: once they are known, `allocate(i, shape)` returns the memory that
  // result i is copied to.
  using Allocate = std::function<void*(size_t index, const std::vector<size_t>& shape)>;
  bool run(const std::vector<Input>& inputs, const Allocate& allocate);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

// Releases the memory that operators keep from one evaluation to the next.
void clear_workspaces();

// The type as which OpenVINO's bindings hand out models.
const std::type_info& model_type();

}  // namespace paddle_ngraph
