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

  // Describes those inputs that a function, built for these inputs, reads in place as weights.
  WeightsInPlace(const WeightWatch& watch, const Inputs& inputs);

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

    // Whether the run may use the function. If false, the function is no longer valid for any run.
    bool has_started() const { return has_started_; }

    // Records that the computation is complete. A run that ends earlier may have packed nothing
    // yet.
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

  // The addresses of the weights that the function uses in place, in the order of
  // WeightWatch::inputs().
  std::vector<const void*> addresses_;
  // Whether the right contents of all packable weights are packed.
  std::atomic<bool> is_packed_{false};
  mutable std::mutex mutex_;
  // Members below: guarded by the mutex.
  bool is_consistent_ = true;  // whether only the right contents were packed
  int runs_ = 0;               // number of runs in progress that may pack weights
  Epoch since_;                // an epoch before the first of these runs
};

}  // namespace paddle_ngraph
