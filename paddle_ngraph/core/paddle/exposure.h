// Who may write to or read the memory of variables, besides the operator that computes with them.
//
// There are three. *Programs* that run in other threads: every run of Paddle's executors is counted
// (ProgramRun). *Python*, through the object of a tensor: it has to be handed one, which is
// recorded (hand_out), and it can write for as long as the object lives. *Others that hold the
// memory* (a NumPy view, an eager tensor, a DLPack capsule, another variable): the number of
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
void weights_written();

// Python got an object for this tensor; the object with this number is gone.
uint64_t hand_out(const phi::DenseTensor& tensor);
void take_back(uint64_t number);

// Memory of weights that eager tensors hold. Operators of dynamic mode reach it without a run and
// without a hand-out, so whoever calls one on it says so (core/paddle/announced_calls.h).
void watch_weight(const std::shared_ptr<phi::Allocation>& memory);
bool is_any_weight_watched();
bool is_watched_weight(const phi::DenseTensor& tensor);

// While it lives, weights count as being written.
class Writing {
 public:
  Writing();
  ~Writing();
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;
};

// The address of the tensor is known: its memory counts as exposed for as long as it exists.
void give_address(const phi::DenseTensor& tensor);

// Python passed the memory of the tensor on to something that may hold it, such as a DLPack
// capsule.
void share_memory(const phi::DenseTensor& tensor);

// While it lives, the memory of these tensors is there, whatever becomes of their variables. It
// writes nothing, so it does not count as a holder.
class Holding {
 public:
  explicit Holding(const std::vector<const phi::DenseTensor*>& tensors);
  ~Holding();
  Holding(const Holding&) = delete;
  Holding& operator=(const Holding&) = delete;

 private:
  std::vector<std::shared_ptr<phi::Allocation>> memory_;
};

// How many there are that hold the memory of a tensor, without those.
long holders_of(const phi::DenseTensor& tensor);

// A point in time, to ask later what happened since.
struct Moment {
  uint64_t writes = 0;
  uint64_t hand_outs = 0;

  static Moment now();
};

// Whether Python had an object of the tensor, or of another one with its memory, at any time since.
bool handed_out_since(const phi::DenseTensor& tensor, const Moment& moment);

// Whether memory may be written without a run, and without another hand-out.
// `own_holders`: how many holders of it the caller knows.
bool is_open_to_others(const phi::DenseTensor& tensor, long own_holders);

// Whether somebody may write the memory without calling an operator of dynamic mode on it. Memory
// that was passed on counts while somebody else holds it: who that is, nobody knows.
bool is_known_outside(const phi::DenseTensor& tensor);

// Whether Paddle allocated the memory of the tensor: then it is unused once nothing holds it.
bool is_of_paddle(const phi::DenseTensor& tensor);

// While it lives no run begins and nothing is handed out. Keep it short, and free nothing
// meanwhile: freeing may wait for the GIL.
class Standstill {
 public:
  Standstill();

  // Whether a variable may get other memory, and its present memory may be reused: the run that
  // asks is the only one, and only the variable and `copy`, made from it, know the memory.
  bool may_exchange(const phi::DenseTensor* variable, const phi::DenseTensor& copy) const;

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace paddle_ngraph
