#include "core/ov/findings.h"

#include <algorithm>
#include <random>
#include <unordered_map>

#include <openvino/op/util/multi_subgraph_base.hpp>

namespace paddle_ngraph {

namespace {

using Numbered = std::unordered_map<int64_t, std::weak_ptr<Findings>>;

std::mutex& registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

Numbered& registry() {
  // Never destroyed: functions may outlive it.
  static Numbered* const numbered = std::make_unique<Numbered>().release();
  return *numbered;
}

// One that no other model has, in another process neither: models are stored.
int64_t new_number() {
  static std::mutex mutex;
  static std::random_device source;
  std::lock_guard<std::mutex> lock(mutex);
  int64_t number = Findings::kNone;
  while (number == Findings::kNone) {
    number = static_cast<int64_t>(uint64_t{source()} << 32 | source());
  }
  return number;
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

bool has_open_sizes(const ov::Model& model) {
  bool is_open = false;
  for_each_node(model, [&](const ov::Node* node) {
    const auto outputs = node->outputs();
    is_open |= std::any_of(outputs.begin(), outputs.end(), [](const auto& output) {
      return output.get_partial_shape().is_dynamic();
    });
  });
  return is_open;
}

}  // namespace

int64_t Findings::number(ov::Model* model) {
  if (!has_open_sizes(*model)) return kNone;
  const int64_t number = new_number();
  for_each_node(*model, [&](ov::Node* node) {
    if (auto* const one = dynamic_cast<FindingOp*>(node)) one->set_findings(number);
  });
  return number;
}

std::shared_ptr<Findings> Findings::of(int64_t number) {
  if (number == kNone) return nullptr;
  std::lock_guard<std::mutex> lock(registry_mutex());
  auto& numbered = registry();
  for (auto entry = numbered.begin(); entry != numbered.end();) {
    entry = entry->second.expired() ? numbered.erase(entry) : std::next(entry);
  }
  auto& known = numbered[number];
  auto findings = known.lock();
  if (findings == nullptr) known = findings = std::make_shared<Findings>();
  return findings;
}

bool Findings::say(int64_t number, const std::string& text) {
  std::shared_ptr<Findings> findings;
  {
    std::lock_guard<std::mutex> lock(registry_mutex());
    const auto known = registry().find(number);
    if (known != registry().end()) findings = known->second.lock();
  }
  if (findings == nullptr) return false;
  OfProcess& now = findings->of_process();
  if (now.running == 0) return false;
  {
    std::lock_guard<std::mutex> lock(now.text_mutex);
    if (now.text.empty()) now.text = text;
  }
  ++now.said;
  return true;
}

Findings::Findings() : now_(std::make_unique<OfProcess>().release()) {}

Findings::~Findings() { std::unique_ptr<OfProcess>(now_.load()).reset(); }

Findings::OfProcess& Findings::of_process() {
  OfProcess* now = now_;
  if (now->process != getpid()) {
    auto own = std::make_unique<OfProcess>();
    // That of the parent stays: it may be locked. If another thread was first, `now` is its own.
    if (now_.compare_exchange_strong(now, own.get())) now = own.release();
  }
  return *now;
}

std::shared_lock<std::shared_mutex> Findings::begin(OfProcess* now) {
  std::lock_guard<std::mutex> gate(now->gate);
  return std::shared_lock<std::shared_mutex>(now->runs);
}

std::unique_lock<std::shared_mutex> Findings::wait_for_others(OfProcess* now) {
  std::lock_guard<std::mutex> gate(now->gate);
  return std::unique_lock<std::shared_mutex>(now->runs);
}

Findings::Watched::Watched(OfProcess* now)
    : now_(now),
      began_alone_(now->running.fetch_add(1) == 0),
      begun_(++now->begun),
      said_(now->said) {
  if (!began_alone_) return;
  std::lock_guard<std::mutex> lock(now->text_mutex);
  now->text.clear();  // of a run that shows again what it finds
}

Findings::Watched::~Watched() { --now_->running; }

bool Findings::Watched::has_met_any() const { return now_->said != said_; }

std::optional<std::string> Findings::Watched::own() const {
  if (!has_met_any() || !began_alone_ || now_->begun != begun_) return std::nullopt;
  std::lock_guard<std::mutex> lock(now_->text_mutex);
  return std::exchange(now_->text, {});
}

void FindingOp::refuse(int64_t findings, const std::string& text) {
  if (findings != Findings::kNone && Findings::say(findings, text)) return;
  throw InvalidInput(mark_invalid_input(text));
}

}  // namespace paddle_ngraph
