// Who may write to or read the memory of variables, besides the operator that computes with them.
//
// There are three. *Programs* that run in other threads: every run of Paddle's executors is counted
// (ProgramRun). *Python*, through the object of a tensor: it has to be handed one, which is
// recorded (record_exposure), and it can write for as long as the object lives. *Others that hold
// the memory* (a NumPy view, an eager tensor, a DLPack capsule, another variable): the number of
// holders shows that, and sharing can start only from a tensor that was handed out. Memory that
// Paddle did not allocate (an array that was not copied, memory shared between processes) always
// belongs to somebody else. Memory whose bare address was requested is exposed until it is freed.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "paddle/phi/core/dense_tensor.h"

namespace paddle_ngraph {

// Lasts from before a run of a program reads variables until it has written the last one. Engine
// operators inside are not counted again. Weights count as written while a run that may write
// lasts, and once when it ends.
class ProgramRun {
 public:
  explicit ProgramRun(bool may_write);
  ~ProgramRun();
  ProgramRun(const ProgramRun&) = delete;
  ProgramRun& operator=(const ProgramRun&) = delete;

 private:
  const bool may_write_;
};

// Reports that weights may have been written, anywhere in the process.
void mark_weights_written();

// Python got an object for this tensor; the object with this number is gone.
uint64_t record_exposure(const phi::DenseTensor& tensor);
void end_exposure(uint64_t number);

// Memory of weights that eager tensors hold. Operators of dynamic mode reach it without a run and
// without a hand-out, so whoever calls one on it says so (core/paddle/call_interception.h).
void watch_weight(const std::shared_ptr<phi::Allocation>& memory);
bool is_any_weight_watched();
bool is_watched_weight(const phi::DenseTensor& tensor);

// While it lives, weights count as being written.
class WeightWriteScope {
 public:
  WeightWriteScope();
  ~WeightWriteScope();
  WeightWriteScope(const WeightWriteScope&) = delete;
  WeightWriteScope& operator=(const WeightWriteScope&) = delete;
};

// The address of the tensor is known: its memory counts as exposed for as long as it exists.
void record_address_escape(const phi::DenseTensor& tensor);

// Python passed the memory of the tensor on to something that may hold it, such as a DLPack
// capsule.
void record_memory_escape(const phi::DenseTensor& tensor);

// While it lives, the memory of these tensors is there, whatever becomes of their variables. It
// writes nothing, so it does not count as a holder.
class MemoryPin {
 public:
  explicit MemoryPin(const std::vector<const phi::DenseTensor*>& tensors);
  ~MemoryPin();
  MemoryPin(const MemoryPin&) = delete;
  MemoryPin& operator=(const MemoryPin&) = delete;

 private:
  std::vector<std::shared_ptr<phi::Allocation>> memory_;
};

// How many there are that hold the memory of a tensor, without those.
long holder_count(const phi::DenseTensor& tensor);

// A point in time, to ask later what happened since.
struct Epoch {
  uint64_t writes = 0;
  uint64_t exposures = 0;

  static Epoch now();
};

// Whether Python had an object of the tensor, or of another one with its memory, at any time since.
bool was_exposed_since(const phi::DenseTensor& tensor, const Epoch& epoch);

// Whether memory may be written without a run, and without another hand-out.
// `own_holders`: how many holders of it the caller knows.
bool is_writable_by_others(const phi::DenseTensor& tensor, long own_holders);

// Whether somebody may write the memory without calling an operator of dynamic mode on it. Memory
// that was passed on counts while somebody else holds it: who that is, nobody knows.
bool has_escaped(const phi::DenseTensor& tensor);

// Whether Paddle allocated the memory of the tensor: then it is unused once nothing holds it.
bool is_paddle_allocated(const phi::DenseTensor& tensor);

// While it lives no run begins and nothing is handed out. Keep it short, and free nothing
// meanwhile: freeing may wait for the GIL.
class QuiescenceLock {
 public:
  QuiescenceLock();

  // Whether a variable may get other memory, and its present memory may be reused: the run that
  // asks is the only one, and only the variable and `copy`, made from it, know the memory.
  bool may_swap_buffer(const phi::DenseTensor* variable, const phi::DenseTensor& copy) const;

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace paddle_ngraph
