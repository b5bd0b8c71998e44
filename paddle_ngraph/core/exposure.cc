#include "exposure.h"

#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <typeinfo>
#include <unordered_map>

#include "tensors.h"

namespace paddle_ngraph {

namespace {

// Of tensors that Python had and has no more; beyond it is forgotten which, and all count as such.
constexpr size_t kMostTakenBack = 4096;
// Of bare addresses; beyond it all memory counts as known.
constexpr size_t kMostAddresses = 1 << 16;

struct HandOut {
  bool lives = false;
  uint64_t ended = 0;
};

struct Ledger {
  std::mutex mutex;
  // Below: guarded by the mutex.
  int runs = 0;
  std::unordered_map<const phi::DenseTensor*, HandOut> hand_outs;
  size_t living = 0;
  uint64_t forgotten = 0;  // hand-outs that ended until then are not in the table
  std::set<uintptr_t> addresses;

  std::atomic<int> writers{0};
  std::atomic<uint64_t> writes{1};
  std::atomic<uint64_t> num_hand_outs{1};

  // Never destroyed: objects of tensors die at the end of the process too.
  static Ledger& instance() {
    static Ledger* const ledger = std::make_unique<Ledger>().release();
    return *ledger;
  }

  // Whether somebody knows an address within the memory of the tensor.
  bool knows_address_in(const phi::DenseTensor& tensor) const {
    if (addresses.empty()) return false;
    if (addresses.size() >= kMostAddresses) return true;
    const auto first = reinterpret_cast<uintptr_t>(tensor.Holder()->ptr());
    const auto found = addresses.lower_bound(first);
    return found != addresses.end() && *found < first + tensor.Holder()->size();
  }
};

}  // namespace

ProgramRun::ProgramRun(bool may_write) : may_write_(may_write) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  ++ledger.runs;
  if (may_write_) ++ledger.writers;
}

ProgramRun::~ProgramRun() {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  --ledger.runs;
  if (!may_write_) return;
  ++ledger.writes;
  --ledger.writers;
}

void weights_written() { ++Ledger::instance().writes; }

void hand_out(const phi::DenseTensor* tensor) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  auto& entry = ledger.hand_outs[tensor];
  if (!entry.lives) ++ledger.living;
  entry.lives = true;
  ++ledger.num_hand_outs;
}

void take_back(const phi::DenseTensor* tensor) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  auto& entry = ledger.hand_outs[tensor];
  if (entry.lives) --ledger.living;
  entry = {false, ++ledger.num_hand_outs};
  if (ledger.hand_outs.size() - ledger.living <= kMostTakenBack) return;
  ledger.forgotten = entry.ended;
  for (auto it = ledger.hand_outs.begin(); it != ledger.hand_outs.end();) {
    it = it->second.lives ? std::next(it) : ledger.hand_outs.erase(it);
  }
}

void give_address(uintptr_t address) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  if (ledger.addresses.size() < kMostAddresses) ledger.addresses.insert(address);
}

Moment Moment::now() {
  auto& ledger = Ledger::instance();
  // While somebody writes, no two moments are the same.
  const uint64_t writes = ledger.writers > 0 ? ++ledger.writes : ledger.writes.load();
  return {writes, ledger.num_hand_outs};
}

bool handed_out_since(const phi::DenseTensor* tensor, const Moment& moment) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  if (ledger.forgotten > moment.hand_outs) return true;
  const auto found = ledger.hand_outs.find(tensor);
  return found != ledger.hand_outs.end() &&
         (found->second.lives || found->second.ended > moment.hand_outs);
}

bool is_open_to_others(const phi::DenseTensor& tensor, long own_holders) {
  if (tensor.Holder() == nullptr) return false;
  if (tensor.Holder().use_count() > own_holders || !is_of_paddle(tensor)) return true;
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  return ledger.knows_address_in(tensor);
}

bool is_of_paddle(const phi::DenseTensor& tensor) {
  static const phi::DenseTensor example = allocate({ElementType::f32, {1}});
  if (tensor.Holder() == nullptr) return false;
  const phi::Allocation& memory = *tensor.Holder();
  return typeid(memory) == typeid(*example.Holder());
}

Standstill::Standstill() : lock_(Ledger::instance().mutex) {}

bool Standstill::may_exchange(const phi::DenseTensor* variable,
                              const phi::DenseTensor& copy) const {
  const auto& ledger = Ledger::instance();
  if (ledger.runs != 1 || !is_held_by_one(copy) || !is_of_paddle(copy)) return false;
  if (ledger.knows_address_in(copy)) return false;
  if (ledger.living == 0) return true;
  const auto found = ledger.hand_outs.find(variable);
  return found == ledger.hand_outs.end() || !found->second.lives;
}

}  // namespace paddle_ngraph
