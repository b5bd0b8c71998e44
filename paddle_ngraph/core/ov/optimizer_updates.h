// Optimizer updates that a run applies after its function has ended: they write to the memory of
// the parameters and of the optimizers' states.
//
// By then all operators have read the old values, and every check has passed. Therefore other
// readers of a parameter, and their order, do not matter. States that are filled are filled after
// all other updates, which may read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/ov/pinned_values.h"

namespace paddle_ngraph {

// One update. The indices of its operands denote inputs of the subgraph (n; states follow the
// others) or results of the function (-1 - n; values that it pins follow its results). No update
// reads a state that another update overwrites, except a state that is filled.
struct Update {
  int optimizer = 0;  // id of the optimizer (kernels/optimizer.h)
  // Attributes of the optimizer, in the order in which its struct in kernels/optimizer.h visits
  // them.
  std::vector<double> attributes;
  std::vector<size_t> states;  // indices of the states that the update writes, the parameter first
  // Operands: the gradient is the sum of `gradients`, multiplied by each of the scalars `factors`.
  // An update that fills a state has no gradients.
  std::vector<int64_t> gradients;
  std::vector<int64_t> factors;
  // Indices of scalar operands of the optimizer, such as the learning rate.
  std::vector<int64_t> parameters;
};

// Throws NgraphError unless the optimizer has this number of attributes, states and operands.
void require_valid(const Update& update);

struct Updates {
  std::vector<Update> steps;
  int num_threads = 0;  // threads that apply the updates; 0: every core the process may use

  // Whether some update writes the state with this index.
  bool write(size_t state) const;
};

// For each state, returns the index of the function's result that is its new value; kNoResult for
// states that updates write. Results that only updates read follow.
constexpr size_t kNoResult = static_cast<size_t>(-1);
std::vector<size_t> state_result_indices(const Updates& updates, size_t num_outputs,
                                         size_t num_states);

// A range of memory that a run reads or writes.
struct MemoryRange {
  uintptr_t begin, end;
  bool is_written;

  MemoryRange(const void* data, size_t num_bytes, bool is_written);
};

// Throws InvalidInput if a written range overlaps another range: the values read would then depend
// on the order of the operators, which a function does not preserve.
void require_disjoint(std::vector<MemoryRange> ranges);

// Loops outside functions, on `num_threads` threads; 0: every core the process may use. A process
// forked from a parent whose threads compute uses one thread.
class LoopThreads {
 public:
  explicit LoopThreads(int num_threads);
  ~LoopThreads();
  LoopThreads(const LoopThreads&) = delete;
  LoopThreads& operator=(const LoopThreads&) = delete;

  // Calls body(begin, end) for chunks that make up [0, count), concurrently if that pays off.
  // `steps` is the number of operations for one index.
  void run(int64_t count, int64_t steps,
           const std::function<void(int64_t begin, int64_t end)>& body) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

class Updater {
 public:
  // The updates of one run. They are prepared before any state is written.
  class Run {
   public:
    explicit Run(const Updater& updater);
    Run(Run&& other) noexcept;
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // Applies the updates. The memory that prepare() got must still be valid.
    void write() const;

   private:
    friend Updater;
    class Implementation;
    std::unique_ptr<Implementation> implementation_;
  };

  explicit Updater(Updates updates);
  ~Updater();
  Updater(const Updater&) = delete;
  Updater& operator=(const Updater&) = delete;

  const Updates& updates() const;

  // Prepares the updates of a run: reads their scalars, such as learning rates, and checks their
  // operands; writes nothing. `inputs` (which end with the states) and `states` are those of the
  // subgraph, `results` those of the function followed by its pinned values; only operands of
  // updates must be set, and written memory must be disjoint from all other. Throws InvalidInput if
  // sizes disagree.
  Run prepare(const std::vector<FloatSpan>& inputs, const std::vector<FloatSpan>& results,
              const std::vector<FloatSpan>& states) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace paddle_ngraph
