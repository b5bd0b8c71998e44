// Hold: keeps values in the memory of a function until the run has ended, and tells where they are.
//
// The plugin uses memory again once the last reader of what is there has run. Hold reads these
// values, and depends on everything else that the model computes: nothing is left to be computed
// after it that could be written there, but what the plugin itself adds, for which the compiled
// model is searched. The next run does write there: see pinned_values.h.
#pragma once

#include <openvino/core/model.hpp>
#include <openvino/runtime/compiled_model.hpp>

#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

struct PinValuesAttributes {
  int64_t count = 0;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("count", count);
  }
};

// (held [...] times `count`, others [...]...) -> u8 [count * sizeof(FloatSpan)]: the bytes of
// FloatSpan, which say where each of the first inputs is. The others are only waited for.
class PinValues : public ExtensionOpOf<PinValues, PinValuesAttributes> {
 public:
  OPENVINO_OP("PinValues", "paddle_ngraph", ExtensionOp);

  // That of the last result of a model; nullptr if there is none.
  static std::shared_ptr<PinValues> of(const ov::Model& model);

  // Leaves it out of the model, and makes results of what it holds, which become the last ones.
  static void remove_from(ov::Model* model);

  // Whether a compiled model that ends with one executes it last, and nothing at the same time.
  static bool executes_last(const ov::CompiledModel& model);

  size_t count() const { return static_cast<size_t>(attributes().count); }

  // Addresses are those of a run.
  bool can_constant_fold(const ov::OutputVector&) const override { return false; }
  bool constant_fold(ov::OutputVector&, const ov::OutputVector&) override { return false; }

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
