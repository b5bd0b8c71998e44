#include "whole_program.h"

#include <utility>

#include "error.h"
#include "ngraph_engine_op.h"
#include "paddle/common/flags.h"
#include "paddle/phi/api/profiler/event_tracing.h"

COMMON_DECLARE_bool(check_nan_inf);

namespace paddle_ngraph {

WholeProgram::WholeProgram(const std::string& graph, std::vector<int> interval,
                           std::vector<phi::DenseTensor*> tensors, std::vector<size_t> feeds,
                           std::vector<size_t> fetches)
    : engine_(NgraphEngine::of(graph)),
      interval_(std::move(interval)),
      tensors_(std::move(tensors)),
      feeds_(std::move(feeds)),
      fetches_(std::move(fetches)) {
  engine_->require_inputs(tensors_.size());
}

std::vector<phi::DenseTensor> WholeProgram::run() const {
  std::vector<phi::DenseTensor> outputs(engine_->num_outputs());
  NgraphIO io;
  io.inputs = tensors_;
  io.num_states = engine_->num_states();
  io.state_outputs.assign(io.num_states, nullptr);
  for (auto& output : outputs) io.outputs.push_back(&output);
  run_interval(interval_, [&] { engine_->run(io); });
  for (size_t feed : feeds_) tensors_[feed]->clear();
  std::vector<phi::DenseTensor> fetched;
  fetched.reserve(fetches_.size());
  for (size_t output : fetches_) fetched.push_back(outputs[output]);
  return fetched;
}

bool is_watched() { return FLAGS_check_nan_inf || phi::RecordEvent::IsEnabled(); }

}  // namespace paddle_ngraph
