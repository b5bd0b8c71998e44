// The custom operator `ngraph_engine`.
//
// Paddle fixes the number of fresh outputs of a custom operator by name, so the operator is
// registered once for each power of two; unused outputs of an operator stay empty. States are an
// in-place vector of any length.
#include "core/paddle/ngraph_engine_op.h"

#include <Python.h>

#include <optional>

#include "paddle/common/enforce.h"
#include "paddle/fluid/platform/init_phi.h"
#include "paddle/phi/api/ext/op_meta_info.h"

#include "core/common/error.h"
#include "core/common/gil_release.h"
#include "core/engine/ngraph_engine.h"
#include "core/paddle/interruption.h"
#include "core/paddle/placeholder_inference.h"

namespace paddle_ngraph {

namespace {

// Initializes Paddle's kernels for this library; paddle/extension.h would do it in each source
// file.
const paddle::InitPhi paddle_is_ready;

std::string location_of(const std::vector<int>& interval) {
  if (interval.size() != 2) return "ngraph_engine: ";
  return concat("ngraph_engine, interval [", interval[0], ", ", interval[1], "]: ");
}

void run_ngraph_engine(paddle::CustomOpKernelContext* context) {
  const auto& attributes = context->Attrs();
  const auto& graph = *paddle::any_cast<std::string>(&attributes.at(0));
  const auto& interval = *paddle::any_cast<std::vector<int>>(&attributes.at(1));
  // Releases the GIL if this thread has it: the caller may be a Python thread (Paddle Inference) or
  // a worker of the Executor.
  std::optional<GilRelease> released;
  if (PyGILState_Check() != 0) released.emplace();
  run_subgraph(interval, [&] {
    auto engine = NgraphEngine::of(graph);
    engine->run(engine->build_ng_io(context));
  });
}

template <size_t kOutputs>
void register_operator() {
  const std::string state = paddle::Optional(paddle::Vec("State"));
  const std::string state_out = paddle::Optional(paddle::Vec("StateOut"));
  std::vector<std::string> outputs;
  for (size_t i = 0; i < kOutputs; ++i) outputs.push_back(concat("Out", i));
  outputs.push_back(state_out);
  paddle::OpMetaInfoBuilder(concat("ngraph_engine_", kOutputs), 0)
      .Inputs({paddle::Optional(paddle::Vec("X")), state})
      .Outputs(std::move(outputs))
      .SetInplaceMap({{state, state_out}})
      .Attrs({"graph: std::string", "interval: std::vector<int>"})
      .SetKernelFn(run_ngraph_engine)
      .SetInferShapeFn(placeholder_shapes<kOutputs>)
      .SetInferDtypeFn(placeholder_dtypes<kOutputs>);
}

template <size_t... kPowers>
bool register_operators(std::index_sequence<kPowers...>) {
  (register_operator<(size_t{1} << kPowers)>(), ...);
  return true;
}

const bool registered = register_operators(std::make_index_sequence<kMaxOutputsLog2 + 1>());

}  // namespace

void run_subgraph(const std::vector<int>& interval, const std::function<void()>& function) {
  try {
    function();
  } catch (const PythonInterrupt& interruption) {
    throw_as_paddle_error(interruption);
  } catch (const common::enforce::EnforceNotMet&) {
    // An exception of Paddle's own is rethrown unchanged.
    throw;
  } catch (const InvalidInput& error) {
    PADDLE_THROW(common::errors::InvalidArgument("%s%s", location_of(interval), error.what()));
  } catch (const std::exception& error) {
    PADDLE_THROW(common::errors::External("%s%s", location_of(interval), error.what()));
  }
}

size_t output_capacity(size_t num_outputs) {
  size_t capacity = 1;
  while (capacity < num_outputs) capacity *= 2;
  if (!registered || capacity > kMaxOutputs) {
    throw NgraphError(concat("an interval may have at most ", kMaxOutputs,
                             " outputs, this one has ", num_outputs));
  }
  return capacity;
}

}  // namespace paddle_ngraph
