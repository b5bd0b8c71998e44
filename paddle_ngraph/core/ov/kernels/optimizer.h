// Optimizer updates of a few elements of a parameter and of its optimizer states, in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace paddle_ngraph {

// Number of elements that are updated at a time: their data stays in the L1 cache.
constexpr int64_t kStepChunk = 512;

// Enumerated as in optimizer_updates.py. kSum adds the gradient to its state; kFill has no
// gradient.
enum class Optimizer : int { kSgd, kMomentum, kAdam, kSum, kFill };

struct SgdAttributes {
  template <typename Visit>
  void visit(const Visit& /*visit*/) {}
};

struct MomentumAttributes {
  double mu = 0;
  bool nesterov = false;
  bool decays = false;
  double decay = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("mu", mu);
    visit("nesterov", nesterov);
    visit("decays", decays);
    visit("decay", decay);
  }
};

struct AdamAttributes {
  double beta1 = 0;
  double beta2 = 0;
  double epsilon = 0;
  bool decays = false;
  double ratio = 1;
  double decay = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("beta1", beta1);
    visit("beta2", beta2);
    visit("epsilon", epsilon);
    visit("decays", decays);
    visit("ratio", ratio);
    visit("decay", decay);
  }
};

// One optimizer update, whose scalar operands are known.
class OptimizerUpdate {
 public:
  virtual ~OptimizerUpdate() = default;

  // Updates `count` elements, at most kStepChunk, of `states`: the parameter, which comes first,
  // and its states. The arrays do not overlap.
  virtual void update(int64_t count, const float* grad, float* const* states) const = 0;
};

// Creates an update. `scalars`: the scalar inputs of the operator with these attributes, in the
// order of optimizer_ops.h.
std::unique_ptr<OptimizerUpdate> step_of(const SgdAttributes& attributes, const float* scalars,
                                         size_t num_states);
std::unique_ptr<OptimizerUpdate> step_of(const MomentumAttributes& attributes, const float* scalars,
                                         size_t num_states);
std::unique_ptr<OptimizerUpdate> step_of(const AdamAttributes& attributes, const float* scalars,
                                         size_t num_states);

// The overload for an optimizer given by its enumerator: `attributes` are in the order in which
// those of the optimizer are visited. Throws NgraphError unless the numbers of attributes, scalars
// and states are those of the optimizer.
std::unique_ptr<OptimizerUpdate> step_of(Optimizer optimizer, const std::vector<double>& attributes,
                                         const std::vector<float>& scalars, size_t num_states);

}  // namespace paddle_ngraph
