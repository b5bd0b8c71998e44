// Weights that a function reads in place, from the variables of its runs.
//
// Weights that the function has not packed are read in each run: correct whenever the weights of
// the run are at the same addresses and have the fingerprint of the function. Packed weights keep
// their contents of the time of packing, so no write may occur between the fingerprint and the
// packing, not even one that is undone later.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "core/paddle/exposure.h"
#include "core/paddle/weights.h"

namespace paddle_ngraph {

class NgraphFunction;

// The weights that one function reads in place. Thread-safe.
class WeightsInPlace {
 public:
  using Inputs = std::vector<phi::DenseTensor*>;

  // Records the addresses of the weights among `inputs`, for which a function was built.
  WeightsInPlace(const WeightWatch& watch, const Inputs& inputs);
  // Copies the addresses, for another function.
  WeightsInPlace(const WeightsInPlace& other) : addresses_(other.addresses_) {}
  WeightsInPlace& operator=(const WeightsInPlace&) = delete;

  // Whether the function is valid for a run with these inputs, whose weights have the fingerprint
  // of the function.
  bool is_valid_for(const WeightWatch& watch, const Inputs& inputs) const;

  // Registers, while this object lives, that a run of the function may pack weights. Nothing is
  // registered if the function reads no weights in place, or has packed all of them.
  class Run {
   public:
    // `since`: an epoch before the fingerprint of the weights was computed.
    Run(const NgraphFunction& function, const WeightWatch& watch, const Inputs& inputs,
        const Epoch& since);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // Whether the function is valid for this run. If not, the function is not valid for any later
    // run either.
    bool has_started() const { return has_started_; }

    // Records that the function has computed its results. A run that fails before may not have
    // packed its weights yet.
    void has_computed() { has_computed_ = true; }

   private:
    const NgraphFunction& function_;
    const WeightWatch& watch_;
    const Inputs& inputs_;
    bool has_started_ = true;
    bool may_pack_ = false;
    bool has_computed_ = false;
  };

 private:
  bool begin(const WeightWatch& watch, const Inputs& inputs, const Epoch& since);
  void end(const WeightWatch& watch, const Inputs& inputs, bool has_packed_all);

  // Addresses of the weights when the function was built, in the order of WeightWatch::inputs().
  std::vector<const void*> addresses_;
  // Whether all weights that can be packed are packed, with contents that match the fingerprint.
  std::atomic<bool> is_packed_{false};
  mutable std::mutex mutex_;
  // Guarded by the mutex, like all members below: whether no weight was packed with other contents.
  bool is_consistent_ = true;
  int runs_ = 0;  // number of runs in progress that may pack weights
  Epoch since_;   // an epoch before the first of the runs in progress
};

}  // namespace paddle_ngraph
