// The custom operator `ngraph_legacy_operator`: one operator of a ProgramDesc program in a PIR
// program, for operators that Paddle's translation to PIR would change.
//
// As for `ngraph_engine`, there is one registered operator for each power of two of fresh outputs.
#include <string>
#include <vector>

#include "paddle/phi/api/ext/op_meta_info.h"

#include "core/common/error.h"
#include "core/engine/model_builder.h"
#include "core/paddle/interruption.h"
#include "core/paddle/placeholder_inference.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

constexpr size_t kMaxLegacyOutputsLog2 = 7;
// The effect of an operator that calls a Python function of the user.
constexpr char kCallsPython[] = "python";

void run_legacy_kernel(paddle::CustomOpKernelContext* context) {
  const auto& text = *paddle::any_cast<std::string>(&context->Attrs().at(0));
  const auto& effects = *paddle::any_cast<std::string>(&context->Attrs().at(3));
  std::vector<phi::DenseTensor*> inputs, outputs;
  const auto& range = context->InputRangeAt(0);
  for (size_t i = range.first; i < range.second; ++i) {
    inputs.push_back(dense(context->InputAt(i)));
  }
  for (size_t i = 0; i < context->OutputRange().size(); ++i) {
    outputs.push_back(dense(*context->MutableOutputAt(i)));
  }
  const bool calls_python = effects.find(kCallsPython) != std::string::npos;
  try {
    run_legacy_operator(text, inputs, outputs, calls_python);
  } catch (const PythonInterrupt& interruption) {
    throw_as_paddle_error(interruption);
  }
}

template <size_t kOutputs>
void register_legacy_operator() {
  std::vector<std::string> outputs;
  for (size_t i = 0; i < kOutputs; ++i) outputs.push_back(concat("Out", i));
  paddle::OpMetaInfoBuilder(concat("ngraph_legacy_operator_", kOutputs), 0)
      .Inputs({paddle::Optional(paddle::Vec("X"))})
      .Outputs(std::move(outputs))
      .Attrs({"operator: std::string", "type: std::string", "reason: std::string",
              "effects: std::string", "overwrites: std::string"})
      .SetKernelFn(run_legacy_kernel)
      .SetInferShapeFn(placeholder_shapes<kOutputs>)
      .SetInferDtypeFn(placeholder_dtypes<kOutputs>);
}

template <size_t... kPowers>
bool register_legacy_operators(std::index_sequence<kPowers...>) {
  (register_legacy_operator<(size_t{1} << kPowers)>(), ...);
  return true;
}

[[maybe_unused]] const bool are_registered =
    register_legacy_operators(std::make_index_sequence<kMaxLegacyOutputsLog2 + 1>());

}  // namespace

}  // namespace paddle_ngraph
