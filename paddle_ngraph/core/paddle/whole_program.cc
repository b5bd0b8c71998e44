#include "core/paddle/whole_program.h"

#include <utility>

#include "paddle/common/flags.h"
#include "paddle/phi/api/profiler/event_tracing.h"

#include "core/common/error.h"
#include "core/common/prefetch.h"
#include "core/paddle/exposure.h"
#include "core/paddle/ngraph_engine_op.h"
#include "core/paddle/tensors.h"

COMMON_DECLARE_bool(check_nan_inf);

namespace paddle_ngraph {

bool is_as_declared(const phi::DenseTensor& tensor, phi::DataType dtype,
                    const std::vector<int64_t>& shape) {
  const auto& dims = tensor.dims();
  if (tensor.dtype() != dtype || tensor.numel() == 0) return false;
  if (static_cast<size_t>(dims.size()) != shape.size()) return false;
  for (int i = 0; i < dims.size(); ++i) {
    if (shape[i] >= 0 && shape[i] != dims[i]) return false;
  }
  return true;
}

WholeProgram::WholeProgram(const std::string& graph, std::vector<int> interval,
                           std::vector<phi::DenseTensor*> tensors, std::vector<Feed> feeds,
                           std::vector<size_t> fetches)
    : engine_(NgraphEngine::of(graph)),
      interval_(std::move(interval)),
      tensors_(std::move(tensors)),
      feeds_(std::move(feeds)),
      fetches_(std::move(fetches)) {
  engine_->require_inputs(tensors_.size());
}

std::vector<phi::DenseTensor> WholeProgram::run() const {
  // Holds the memory of the feeds during the run: another thread may feed these variables
  // concurrently.
  std::vector<phi::DenseTensor> fed;
  fed.reserve(feeds_.size());
  auto tensors = tensors_;
  for (const auto& feed : feeds_) {
    fed.push_back(*tensors_[feed.tensor]);
    tensors[feed.tensor] = &fed.back();
  }
  auto fetched = run_with(tensors);
  for (const auto& feed : feeds_) tensors_[feed.tensor]->clear();
  return fetched;
}

std::optional<std::vector<phi::DenseTensor>> WholeProgram::run_on(
    std::vector<phi::DenseTensor> fed) const {
  if (fed.size() != feeds_.size()) return std::nullopt;
  auto tensors = tensors_;
  for (size_t i = 0; i < fed.size(); ++i) {
    if (!is_as_declared(fed[i], feeds_[i].dtype, feeds_[i].shape)) return std::nullopt;
    // Copies a feed that the operator reads as a state, and would overwrite: the feed belongs to
    // the user.
    const bool is_state = feeds_[i].tensor >= tensors_.size() - engine_->num_states();
    if (is_state) fed[i] = copy_of(fed[i]);
    tensors[feeds_[i].tensor] = &fed[i];
  }
  return run_with(tensors);
}

bool WholeProgram::run_into(const std::vector<phi::DenseTensor*>& targets) const {
  std::vector<phi::DenseTensor> fed;
  fed.reserve(feeds_.size());
  for (const auto& feed : feeds_) {
    const auto& tensor = *tensors_[feed.tensor];
    if (!tensor.initialized() || !tensor.lod().empty()) return false;
    fed.push_back(tensor);
  }
  auto fetched = run_on(std::move(fed));
  if (!fetched) return false;
  for (size_t i = 0; i < targets.size(); ++i) *targets[i] = std::move((*fetched)[i]);
  return true;
}

std::vector<phi::DenseTensor> WholeProgram::run_with(
    const std::vector<phi::DenseTensor*>& tensors) const {
  for (const auto* tensor : tensors) prefetch(tensor, sizeof(*tensor));
  for (const auto* tensor : tensors) prefetch(tensor->Holder().get(), sizeof(phi::Allocation));
  std::vector<phi::DenseTensor> outputs(engine_->num_outputs());
  NgraphIO io;
  io.inputs.reserve(tensors.size());
  io.num_states = engine_->num_states();
  for (auto* tensor : tensors) {
    io.append_input(tensor, io.inputs.size() >= tensors.size() - io.num_states);
  }
  io.state_outputs.assign(io.num_states, nullptr);
  for (auto& output : outputs) io.outputs.push_back(&output);
  const ProgramRun counted(io.num_states > 0);
  run_subgraph(interval_, [&] { engine_->run(io); });
  std::vector<phi::DenseTensor> fetched;
  fetched.reserve(fetches_.size());
  for (size_t output : fetches_) fetched.push_back(outputs[output]);
  return fetched;
}

bool observes_operators() { return FLAGS_check_nan_inf || phi::RecordEvent::IsEnabled(); }

}  // namespace paddle_ngraph
