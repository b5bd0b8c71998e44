#include "core/ov/deferred_errors.h"

#include <algorithm>
#include <random>
#include <unordered_map>

#include <openvino/op/util/multi_subgraph_base.hpp>

#include "core/ov/plugin_errors.h"

namespace paddle_ngraph {

namespace {

using RegistryById = std::unordered_map<int64_t, std::weak_ptr<DeferredErrors>>;

std::mutex& registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

RegistryById& registry() {
  // The registry of errors by model id, never destroyed: functions may outlive static objects.
  static RegistryById* const errors_by_id = std::make_unique<RegistryById>().release();
  return *errors_by_id;
}

// A random id of a model. Counters would not do: stored models of other processes have ids, too.
int64_t new_id() {
  static std::mutex mutex;
  static std::random_device source;
  std::lock_guard<std::mutex> lock(mutex);
  int64_t id = DeferredErrors::kNone;
  while (id == DeferredErrors::kNone) {
    id = static_cast<int64_t>(uint64_t{source()} << 32 | source());
  }
  return id;
}

template <typename Visit>
void for_each_node(const ov::Model& model, const Visit& visit) {
  for (const auto& node : model.get_ops()) {
    visit(node.get());
    const auto* with_bodies = dynamic_cast<const ov::op::util::MultiSubGraphOp*>(node.get());
    for (size_t i = 0; with_bodies && i < with_bodies->get_internal_subgraphs_size(); ++i) {
      for_each_node(*with_bodies->get_function(static_cast<int>(i)), visit);
    }
  }
}

bool has_dynamic_dims(const ov::Model& model) {
  bool is_dynamic = false;
  for_each_node(model, [&](const ov::Node* node) {
    const auto outputs = node->outputs();
    is_dynamic |= std::any_of(outputs.begin(), outputs.end(), [](const auto& output) {
      return output.get_partial_shape().is_dynamic();
    });
  });
  return is_dynamic;
}

}  // namespace

int64_t DeferredErrors::assign_id(ov::Model* model) {
  if (!has_dynamic_dims(*model)) return kNone;
  const int64_t id = new_id();
  for_each_node(*model, [&](ov::Node* node) {
    if (auto* const one = dynamic_cast<ContentCheckOp*>(node)) one->set_deferred_errors_id(id);
  });
  return id;
}

std::shared_ptr<DeferredErrors> DeferredErrors::of(int64_t id) {
  if (id == kNone) return nullptr;
  std::lock_guard<std::mutex> lock(registry_mutex());
  auto& errors_by_id = registry();
  for (auto entry = errors_by_id.begin(); entry != errors_by_id.end();) {
    entry = entry->second.expired() ? errors_by_id.erase(entry) : std::next(entry);
  }
  auto& known = errors_by_id[id];
  auto errors = known.lock();
  if (errors == nullptr) known = errors = std::make_shared<DeferredErrors>();
  return errors;
}

std::shared_ptr<DeferredErrors> DeferredErrors::find(int64_t id) {
  std::lock_guard<std::mutex> lock(registry_mutex());
  const auto known = registry().find(id);
  return known == registry().end() ? nullptr : known->second.lock();
}

bool DeferredErrors::report_again(int64_t id) {
  const auto errors = find(id);
  if (errors == nullptr) return false;
  ProcessState& state = errors->process_state();
  std::lock_guard<std::mutex> lock(state.report_mutex);
  if (!state.report) return false;
  ++state.num_reports;
  return true;
}

bool DeferredErrors::report(int64_t id, const InvalidInput& error) {
  const auto errors = find(id);
  if (errors == nullptr) return false;
  ProcessState& state = errors->process_state();
  if (state.running == 0) return false;
  {
    std::lock_guard<std::mutex> lock(state.report_mutex);
    if (!state.report) state.report = error;
  }
  ++state.num_reports;
  return true;
}

DeferredErrors::DeferredErrors() : state_(std::make_unique<ProcessState>().release()) {}

DeferredErrors::~DeferredErrors() { std::unique_ptr<ProcessState>(state_.load()).reset(); }

DeferredErrors::ProcessState& DeferredErrors::process_state() {
  ProcessState* state = state_;
  if (state->process != getpid()) {
    auto new_state = std::make_unique<ProcessState>();
    // In a forked process, a new state replaces that of the parent, which is not freed: its mutex
    // may be locked. If another thread was first, `state` is that thread's.
    if (state_.compare_exchange_strong(state, new_state.get())) state = new_state.release();
  }
  return *state;
}

std::shared_lock<std::shared_mutex> DeferredErrors::begin_shared_run(ProcessState* state) {
  std::lock_guard<std::mutex> gate(state->gate);
  return std::shared_lock<std::shared_mutex>(state->runs);
}

std::unique_lock<std::shared_mutex> DeferredErrors::begin_exclusive_run(ProcessState* state) {
  std::lock_guard<std::mutex> gate(state->gate);
  return std::unique_lock<std::shared_mutex>(state->runs);
}

DeferredErrors::ErrorScope::ErrorScope(ProcessState* state)
    : state_(state),
      began_alone_(state->running.fetch_add(1) == 0),
      num_started_(++state->num_started),
      reports_before_(state->num_reports) {
  if (!began_alone_) return;
  std::lock_guard<std::mutex> lock(state->report_mutex);
  // Drops the report of a run that is repeated and will report its errors again.
  state->report.reset();
}

DeferredErrors::ErrorScope::~ErrorScope() { --state_->running; }

bool DeferredErrors::ErrorScope::has_new_reports() const {
  return state_->num_reports != reports_before_;
}

std::optional<InvalidInput> DeferredErrors::ErrorScope::own_report() const {
  if (!has_new_reports() || !began_alone_ || state_->num_started != num_started_)
    return std::nullopt;
  std::lock_guard<std::mutex> lock(state_->report_mutex);
  return std::exchange(state_->report, std::nullopt);
}

void ContentCheckOp::report_error(int64_t deferred_errors_id, const InvalidInput& error) {
  if (deferred_errors_id != DeferredErrors::kNone &&
      DeferredErrors::report(deferred_errors_id, error))
    return;
  throw tagged(error);
}

}  // namespace paddle_ngraph
