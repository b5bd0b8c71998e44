// The weights that a function reads where they are, in the variables of the runs that it serves.
//
// What it has not packed it reads in each run: that is right whenever the weights of the run are
// there and have the fingerprint of the function. What it packs stays as it was when it was packed,
// so nobody may have written meanwhile, even if the weights have their contents again.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "core/paddle/exposure.h"
#include "core/paddle/weights.h"

namespace paddle_ngraph {

class NgraphFunction;

// Thread-safe.
class WeightsInPlace {
 public:
  using Inputs = std::vector<phi::DenseTensor*>;

  // Of a function that was built for these inputs.
  WeightsInPlace(const WeightWatch& watch, const Inputs& inputs);

  // Whether the function serves a run with these inputs, whose weights have its fingerprint.
  bool is_valid_for(const WeightWatch& watch, const Inputs& inputs) const;

  // A run of a function, whatever weights it has.
  class Run {
   public:
    // `since`: before the fingerprint was made.
    Run(const NgraphFunction& function, const WeightWatch& watch, const Inputs& inputs,
        const Epoch& since);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // If not, the function serves no run any more.
    bool has_started() const { return has_started_; }

    // All has been computed. A run that ends before may have packed nothing yet.
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

  std::vector<const void*> addresses_;  // in the order of WeightWatch::inputs()
  std::atomic<bool> is_packed_{false};  // all that ever is, from the right weights
  mutable std::mutex mutex_;
  // Below: guarded by the mutex.
  bool is_consistent_ = true;  // that it has packed the right weights
  int runs_ = 0;               // that go on and may pack
  Epoch since_;                // before the first of them
};

}  // namespace paddle_ngraph
