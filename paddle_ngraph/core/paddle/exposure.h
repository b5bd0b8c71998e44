// Tracking of possible writers and readers of the memory of variables, other than the operator that
// computes with them.
//
// There are three. *Programs* that run in other threads: every run of Paddle's executors is counted
// (ProgramRun). *Python*, through the object of a tensor: the tensor has to be exposed as an
// object, which is recorded (record_exposure), and Python can write for as long as the object
// lives. *Other holders of the memory* (a NumPy view, an eager tensor, a DLPack capsule, another
// variable): the number of holders shows them, and sharing can start only from an exposed tensor.
// Memory that Paddle did not allocate (an array that was not copied, memory shared between
// processes) always belongs to another owner. Memory whose bare address was requested is exposed
// until it is freed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Scope of a program run: from before the run reads variables until it has written the last one.
// Engine operators inside are not counted again. Weights are treated as written while a run that
// may write lasts, and once when it ends. In a forked process, the runs of other threads have
// ended.
class ProgramRun {
 public:
  // `is_of_thread`: whether the calling thread is in the run until it ends. Other runs, such as the
  // lifetime of an object that may write, go on in a forked process.
  explicit ProgramRun(bool may_write, bool is_of_thread = true);
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

  // Ends the runs of threads that a forked process lacks.
  static void end_in_child();

 private:
  void end();

  const bool may_write_, is_of_thread_;
  bool has_ended_ = false;
  const std::thread::id thread_;
  // The neighbours in the list of all runs.
  ProgramRun *previous_ = nullptr, *next_ = nullptr;
};

// Number of runs and scopes that may be writing weights now.
int num_weight_writers();

// Reports that any weights of the process may have been written, so that fingerprints are checked
// again.
void mark_weights_written();

// record_exposure() records that Python got an object for this tensor, and returns the id of the
// exposure; end_exposure() records that the object with this id has been destroyed.
uint64_t record_exposure(const phi::DenseTensor& tensor);
// As record_exposure(), for a tensor that may have been destroyed: Python's object of a variable's
// tensor does not own the tensor. Then an address may be recorded that is no longer in use.
uint64_t record_possible_exposure(const phi::DenseTensor* tensor);
void end_exposure(uint64_t number);

// Registers the memory of a weight that an eager tensor shares. Operators of dynamic mode can write
// it without a run of a program and without record_exposure(), so calls of such operators are
// intercepted (core/paddle/call_interception.h).
void watch_weight(const std::shared_ptr<phi::Allocation>& memory);
bool is_any_weight_watched();
bool is_watched_weight(const phi::DenseTensor& tensor);

// While such an object lives, all weights are treated as being written.
class WeightWriteScope {
 public:
  WeightWriteScope();
  ~WeightWriteScope();
  WeightWriteScope(const WeightWriteScope&) = delete;
  WeightWriteScope& operator=(const WeightWriteScope&) = delete;
};

// Records that the address of the tensor is known outside: its memory is treated as exposed for as
// long as it exists.
void record_address_escape(const phi::DenseTensor& tensor);

// Records that Python passed the memory of the tensor to a possible holder, such as a DLPack
// capsule.
void record_memory_escape(const phi::DenseTensor& tensor);

// Keeps the memory of tensors alive, even if their variables are destroyed. A pin writes nothing,
// so the search for holders that could write a weight does not count it.
class MemoryPin {
 public:
  explicit MemoryPin(const std::vector<const phi::DenseTensor*>& tensors);
  ~MemoryPin();
  MemoryPin(const MemoryPin&) = delete;
  MemoryPin& operator=(const MemoryPin&) = delete;

  // Tensors with the pinned memory, in the order of the constructor's.
  const std::vector<phi::DenseTensor>& tensors() const { return tensors_; }

 private:
  std::vector<phi::DenseTensor> tensors_;
};

// Number of references to the memory of a tensor, not counting pins.
long holder_count(const phi::DenseTensor& tensor);

// Values of the counters of writes and exposures at some time, to detect later ones.
struct Epoch {
  uint64_t writes = 0;
  uint64_t exposures = 0;

  static Epoch now();
};

// Whether Python had an object of the tensor, or of another tensor with its memory, at any time
// since `epoch`.
bool was_exposed_since(const phi::DenseTensor& tensor, const Epoch& epoch);

// Whether a variable was exposed that may have been destroyed, given another tensor with its
// memory.
bool was_exposed_since(const phi::DenseTensor* variable, const phi::DenseTensor& tensor,
                       const Epoch& epoch);

// Whether memory may be written without a run, and without another exposure. `own_holders`: the
// number of holders that the caller knows.
bool is_writable_by_others(const phi::DenseTensor& tensor, long own_holders);

// Whether the memory may be written without a call of a dynamic-mode operator on it. Memory that
// was passed on is treated as writable while it has another holder, because the holder is unknown.
bool has_escaped(const phi::DenseTensor& tensor);

// Whether Paddle allocated the memory of the tensor: such memory is unused once it has no holder.
bool is_paddle_allocated(const phi::DenseTensor& tensor);

// Blocks new runs and exposures during its lifetime. Hold it for a short time, and free nothing
// meanwhile: freeing may wait for the GIL.
class QuiescenceLock {
 public:
  QuiescenceLock();

  // Whether a variable may get other memory, and its present memory may be reused: the calling run
  // is the only one, and only the variable and its `copy` refer to the memory.
  bool may_swap_buffer(const phi::DenseTensor* variable, const phi::DenseTensor& copy) const;

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace paddle_ngraph
