// Steps of optimizers that a run takes when its function is done: they write where the parameters
// and the states of the optimizers are.
//
// By then everything has read the old values, and every check has passed. So it does not matter
// what else reads a parameter, nor in which order. What is filled is filled after all other steps,
// which may read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/ov/pinned_values.h"

namespace paddle_ngraph {

// One step. What it reads is an input of the interval, n, where states follow the others, or a
// result of the function, -1 - n, where values that it holds follow its results. No state is read
// that another step overwrites, but by filling it.
struct Update {
  int optimizer = 0;                // see kernels/optimizer.h
  std::vector<double> attributes;   // in the order of kernels/optimizer.h
  std::vector<size_t> states;       // which states it writes, the parameter first
  std::vector<int64_t> gradients;   // which are added (none to fill a state),
  std::vector<int64_t> factors;     // then multiplied by each of these numbers
  std::vector<int64_t> parameters;  // the numbers of the optimizer: its rate, ...
};

struct Updates {
  std::vector<Update> steps;
  int num_threads = 0;  // 0: every core the process may use

  // Whether the state is written by a step.
  bool write(size_t state) const;
};

// Tells which result of a function becomes the new value of each state; kNoResult for those that
// are written by steps. Results that only steps read follow.
constexpr size_t kNoResult = static_cast<size_t>(-1);
std::vector<size_t> state_result_indices(const Updates& updates, size_t num_outputs,
                                         size_t num_states);

// A stretch of memory, and whether a run writes there.
struct MemoryRange {
  uintptr_t begin, end;
  bool is_written;

  MemoryRange(const void* data, size_t num_bytes, bool is_written);
};

// Throws InvalidInput if one that is written overlaps another one: what is read, and when, is then
// for the order of the operators to say, which a function does not keep.
void require_disjoint(std::vector<MemoryRange> ranges);

// Loops outside of functions, on so many threads; 0: every core the process may use. A process that
// was forked from one whose threads compute has one.
class LoopThreads {
 public:
  explicit LoopThreads(int num_threads);
  ~LoopThreads();
  LoopThreads(const LoopThreads&) = delete;
  LoopThreads& operator=(const LoopThreads&) = delete;

  // Calls body(begin, end) on parts that make up [0, count). `steps` is the work of one index.
  void run(int64_t count, int64_t steps,
           const std::function<void(int64_t begin, int64_t end)>& body) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

class Updater {
 public:
  // What one run is going to write.
  class Run {
   public:
    explicit Run(const Updater& updater);
    Run(Run&& other) noexcept;
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // Writes. The memory has to be there still.
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

  // Reads the numbers of all steps, and checks what they are given; writes nothing. Inputs, which
  // end with the states, and states are those of the interval, results those of the function and
  // what it holds; only what steps read or write has to be set, and what is written has to be
  // apart. Throws InvalidInput where sizes disagree.
  Run prepare(const std::vector<FloatSpan>& inputs, const std::vector<FloatSpan>& results,
              const std::vector<FloatSpan>& states) const;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace paddle_ngraph
