#include "core/paddle/dynamic_modes.h"

// Declares functions of Paddle's tracer, whose header is not in its wheel. They access static
// members, one for each thread, so that it does not matter which tracer is asked.
namespace paddle::imperative {

enum class AmpLevel;

class Tracer {
 public:
  bool HasGrad() const;
  void SetHasGrad(bool on);
  AmpLevel GetAmpLevel() const;
};

}  // namespace paddle::imperative

namespace paddle_ngraph {

static paddle::imperative::Tracer any_tracer;

bool has_gradients() { return any_tracer.HasGrad(); }

void set_gradients(bool on) { any_tracer.SetHasGrad(on); }

bool has_mixed_precision() { return static_cast<int>(any_tracer.GetAmpLevel()) != 0; }

}  // namespace paddle_ngraph
