#include "core/paddle/random.h"

#include <atomic>
#include <mutex>
#include <sstream>

#include "paddle/phi/core/generator.h"

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

namespace {

// Changes of the generator that have begun, and those of them that have not ended: by all threads,
// and by this one.
std::atomic<int64_t> num_changes{0}, num_open_changes{0};
thread_local int64_t num_own_changes = 0, num_own_open_changes = 0;

}  // namespace

GeneratorChange::GeneratorChange() {
  ++num_open_changes;
  ++num_own_open_changes;
  ++num_changes;
  ++num_own_changes;
}

GeneratorChange::~GeneratorChange() {
  --num_open_changes;
  --num_own_open_changes;
}

int64_t generator_changes_of_other_threads() {
  return num_open_changes > num_own_open_changes ? -1 : num_changes - num_own_changes;
}

void sample(const std::vector<RandomSample>& samples, const std::vector<void*>& outputs) {
  if (samples.empty()) return;
  const ForkBlocker fork_blocker;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const GeneratorChange change;
  const auto shared = phi::DefaultCPUGenerator()->GetCPUEngine();
  for (size_t i = 0; i < samples.size(); ++i) sample(samples[i], shared.get(), outputs[i]);
  inject_fault(Step::kDraw);
}

RandomState::RandomState() : engine_(*phi::DefaultCPUGenerator()->GetCPUEngine()) {}

// The standard library writes and reads the state as a list of integers.
std::vector<uint64_t> RandomState::words() const {
  std::stringstream text;
  text << engine_;
  std::vector<uint64_t> words;
  for (uint64_t word = 0; text >> word;) words.push_back(word);
  return words;
}

RandomState RandomState::of(const std::vector<uint64_t>& words) {
  std::stringstream text;
  for (uint64_t word : words) text << word << ' ';
  RandomState state;
  if (words.size() != kNumWords || !(text >> state.engine_)) {
    throw NgraphError("these words are no state of a random generator");
  }
  return state;
}

bool RandomState::operator==(const RandomState& other) const {
  std::mt19937_64 ours = engine_, theirs = other.engine_;
  for (size_t i = 0; i < std::mt19937_64::state_size; ++i) {
    if (ours() != theirs()) return false;
  }
  return true;
}

void RandomState::restore() const { *phi::DefaultCPUGenerator()->GetCPUEngine() = engine_; }

StreamGuard::StreamGuard(bool samples) {
  if (samples) before_.emplace();
}

StreamGuard::~StreamGuard() {
  if (before_) before_->restore();
}

}  // namespace paddle_ngraph
