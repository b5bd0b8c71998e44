// PinValues: pins values in the memory of a function until the run has ended, and returns their
// addresses.
//
// The plugin reuses memory once the last reader of its contents has run. PinValues reads the pinned
// values, and depends on all other computation of the model: no node after it can overwrite them,
// except nodes that the plugin itself adds, for which the compiled model is searched. The next run
// does overwrite them: see pinned_values.h.
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

// (pinned [...] times `count`, others [...]...) -> u8 [count * sizeof(FloatSpan)]: the bytes of one
// FloatSpan, the address and size, for each of the first inputs. The others are mere dependencies.
class PinValues : public ExtensionOpOf<PinValues, PinValuesAttributes> {
 public:
  OPENVINO_OP("PinValues", "paddle_ngraph", ExtensionOp);

  // Finds the PinValues node that computes the last result of a model; nullptr if there is none.
  static std::shared_ptr<PinValues> of(const ov::Model& model);

  // Removes the PinValues of a model; the values that it would pin become the last results instead.
  static void remove_from(ov::Model* model);

  // Whether a compiled model that ends with a PinValues executes it last, and no other node
  // concurrently.
  static bool executes_last(const ov::CompiledModel& model);

  size_t count() const { return static_cast<size_t>(attributes().count); }

  // Not folded, since its result consists of addresses, which differ from run to run.
  bool can_constant_fold(const ov::OutputVector&) const override { return false; }
  bool constant_fold(ov::OutputVector&, const ov::OutputVector&) override { return false; }

 protected:
  void infer() override;
  void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const override;
};

}  // namespace paddle_ngraph
