#include "core/paddle/exposure.h"

#include <array>
#include <atomic>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <typeinfo>
#include <unordered_map>

#include "core/common/fork_safe_mutex.h"
#include "core/common/memory_pool.h"
#include "core/paddle/shared_parameters.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// At most so many places that Python can no longer reach are remembered. Beyond that they are
// forgotten, and all places count as having been reachable until then.
constexpr size_t kMostClosed = 8192;

// A tensor or its memory: Python's object for a variable may be a copy that shares its memory.
using Place = const void*;

struct Reach {
  int objects = 0;     // of Python that lead there
  uint64_t ended = 0;  // when the last of them died
};

Place memory_of(const phi::DenseTensor& tensor) {
  return tensor.Holder() == nullptr ? nullptr : tensor.Holder()->ptr();
}

// Memory whose address somebody knows, for as long as there is such memory.
class KnownMemory {
 public:
  void add(const phi::DenseTensor& tensor) {
    if (!is_of_paddle(tensor)) return add_foreign(start_of(tensor) + tensor.meta().offset);
    own_.insert(tensor.Holder());
    if (own_.size() < next_cleanup_) return;
    for (auto it = own_.begin(); it != own_.end();) {
      it = it->expired() ? own_.erase(it) : std::next(it);
    }
    next_cleanup_ = 2 * own_.size() + kFirstCleanup;
  }

  bool has(const phi::DenseTensor& tensor) const {
    if (own_.count(tensor.Holder()) > 0) return true;
    const uintptr_t first = start_of(tensor);
    const auto found = foreign_.lower_bound(first >> block_bits_);
    const uintptr_t last = first + tensor.Holder()->size() - 1;
    return found != foreign_.end() && *found <= last >> block_bits_;
  }

 private:
  static constexpr size_t kFirstCleanup = 64;
  static constexpr size_t kMostBlocks = 1 << 12;

  static uintptr_t start_of(const phi::DenseTensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.Holder()->ptr());
  }

  // The holder of foreign memory may be gone before the memory itself, which may even be Paddle's
  // (behind a capsule). So addresses are kept for good. If they become too many, the blocks that
  // they lie in are kept instead, and blocks grow until these are few enough.
  void add_foreign(uintptr_t address) {
    foreign_.insert(address >> block_bits_);
    while (foreign_.size() > kMostBlocks) {
      ++block_bits_;
      std::set<uintptr_t> larger;
      for (uintptr_t block : foreign_) larger.insert(block >> 1);
      foreign_.swap(larger);
    }
  }

  std::set<std::weak_ptr<phi::Allocation>, std::owner_less<>> own_;
  size_t next_cleanup_ = kFirstCleanup;
  std::set<uintptr_t> foreign_;  // addresses without their low bits
  int block_bits_ = 0;
};

// Memory of eager tensors whose contents functions keep as constants.
class WatchedMemory {
 public:
  void add(const std::shared_ptr<phi::Allocation>& memory) {
    memory_[memory.get()] = memory;
    if (memory_.size() < next_cleanup_) return;
    for (auto it = memory_.begin(); it != memory_.end();) {
      it = it->second.expired() ? memory_.erase(it) : std::next(it);
    }
    next_cleanup_ = 2 * memory_.size() + kFirstCleanup;
  }

  // Memory that is gone does not count, though other memory may have taken its place.
  bool has(const phi::Allocation* memory) const {
    const auto found = memory_.find(memory);
    return found != memory_.end() && !found->second.expired();
  }

 private:
  static constexpr size_t kFirstCleanup = 1024;

  std::unordered_map<const phi::Allocation*, std::weak_ptr<phi::Allocation>> memory_;
  size_t next_cleanup_ = kFirstCleanup;
};

struct Ledger {
  ForkSafeMutex mutex;
  // Below: guarded by the mutex.
  int runs = 0;
  std::unordered_map<uint64_t, std::array<Place, 2>> objects;  // where they lead, by number
  std::unordered_map<Place, Reach> reached;
  size_t num_open = 0;     // places that objects lead to
  uint64_t forgotten = 0;  // what ended until then is no longer in the table
  KnownMemory known;
  KnownMemory shared;
  WatchedMemory watched;
  std::unordered_map<const phi::Allocation*, long> held;  // how often by a Holding

  std::atomic<bool> is_any_held{false};
  std::atomic<bool> is_any_watched{false};
  std::atomic<int> writers{0};
  std::atomic<uint64_t> writes{1};
  std::atomic<uint64_t> num_hand_outs{1};

  // Never destroyed: Python's objects for tensors die at the end of the process, too.
  static Ledger& instance() {
    static Ledger* const ledger = std::make_unique<Ledger>().release();
    return *ledger;
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

void watch_weight(const std::shared_ptr<phi::Allocation>& memory) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  ledger.watched.add(memory);
  ledger.is_any_watched = true;
}

bool is_any_weight_watched() { return Ledger::instance().is_any_watched; }

bool is_watched_weight(const phi::DenseTensor& tensor) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  return ledger.watched.has(tensor.Holder().get());
}

Writing::Writing() { ++Ledger::instance().writers; }

Writing::~Writing() {
  auto& ledger = Ledger::instance();
  ++ledger.writes;
  --ledger.writers;
}

Holding::Holding(const std::vector<const phi::DenseTensor*>& tensors) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  ledger.is_any_held = true;
  for (const auto* tensor : tensors) {
    if (tensor->Holder() == nullptr) continue;
    memory_.push_back(tensor->Holder());
    ++ledger.held[memory_.back().get()];
  }
}

Holding::~Holding() {
  auto& ledger = Ledger::instance();
  // Memory is let go afterwards: freeing may wait for the GIL, and meanwhile rather one holder too
  // many is counted than one too few.
  std::lock_guard<std::mutex> lock(ledger.mutex);
  for (const auto& memory : memory_) {
    const auto found = ledger.held.find(memory.get());
    if (--found->second == 0) ledger.held.erase(found);
  }
  ledger.is_any_held = !ledger.held.empty();
}

long holders_of(const phi::DenseTensor& tensor) {
  auto& ledger = Ledger::instance();
  if (!ledger.is_any_held) return tensor.Holder().use_count();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  const auto found = ledger.held.find(tensor.Holder().get());
  return tensor.Holder().use_count() - (found == ledger.held.end() ? 0 : found->second);
}

void weights_written() { ++Ledger::instance().writes; }

uint64_t hand_out(const phi::DenseTensor& tensor) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  const uint64_t number = ++ledger.num_hand_outs;
  const std::array<Place, 2> places{&tensor, memory_of(tensor)};
  for (Place place : places) {
    if (ledger.reached[place].objects++ == 0) ++ledger.num_open;
  }
  ledger.objects.emplace(number, places);
  return number;
}

void take_back(uint64_t number) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  const auto object = ledger.objects.find(number);
  if (object == ledger.objects.end()) return;
  const uint64_t now = ++ledger.num_hand_outs;
  for (Place place : object->second) {
    auto& reach = ledger.reached[place];
    reach.ended = now;
    if (--reach.objects == 0) --ledger.num_open;
  }
  ledger.objects.erase(object);
  if (ledger.reached.size() - ledger.num_open <= kMostClosed) return;
  ledger.forgotten = now;
  for (auto it = ledger.reached.begin(); it != ledger.reached.end();) {
    it = it->second.objects > 0 ? std::next(it) : ledger.reached.erase(it);
  }
}

void give_address(const phi::DenseTensor& tensor) {
  if (tensor.Holder() == nullptr) return;
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  ledger.known.add(tensor);
}

void share_memory(const phi::DenseTensor& tensor) {
  if (tensor.Holder() == nullptr) return;
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  ledger.shared.add(tensor);
}

Moment Moment::now() {
  auto& ledger = Ledger::instance();
  // While somebody writes, no two moments are the same.
  const uint64_t writes = ledger.writers > 0 ? ++ledger.writes : ledger.writes.load();
  return {writes, ledger.num_hand_outs};
}

bool handed_out_since(const phi::DenseTensor& tensor, const Moment& moment) {
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  if (ledger.forgotten > moment.hand_outs) return true;
  const auto was_reached = [&](Place place) {
    const auto found = ledger.reached.find(place);
    return found != ledger.reached.end() &&
           (found->second.objects > 0 || found->second.ended > moment.hand_outs);
  };
  return was_reached(&tensor) || was_reached(memory_of(tensor));
}

bool is_open_to_others(const phi::DenseTensor& tensor, long own_holders) {
  if (tensor.Holder() == nullptr) return false;
  if (holders_of(tensor) > own_holders || !is_of_paddle(tensor)) return true;
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  return ledger.known.has(tensor);
}

bool is_known_outside(const phi::DenseTensor& tensor) {
  if (!is_of_paddle(tensor)) return true;
  auto& ledger = Ledger::instance();
  std::lock_guard<std::mutex> lock(ledger.mutex);
  const auto found = ledger.reached.find(memory_of(tensor));
  const bool is_reached = found != ledger.reached.end() && found->second.objects > 0;
  if (is_reached || ledger.known.has(tensor)) return true;
  return tensor.Holder().use_count() > 1 && ledger.shared.has(tensor);
}

bool is_of_paddle(const phi::DenseTensor& tensor) {
  static const phi::DenseTensor example = allocate({ElementType::f32, {1}});
  if (tensor.Holder() == nullptr) return false;
  const phi::Allocation* lent = SharedParameters::source_of(*tensor.Holder());
  const phi::Allocation& memory = lent == nullptr ? *tensor.Holder() : *lent;
  return typeid(memory) == typeid(*example.Holder()) || MemoryPool::owns(memory);
}

Standstill::Standstill() : lock_(Ledger::instance().mutex) {}

bool Standstill::may_exchange(const phi::DenseTensor* variable,
                              const phi::DenseTensor& copy) const {
  const auto& ledger = Ledger::instance();
  if (ledger.runs != 1 || !is_held_by_one(copy) || !is_of_paddle(copy)) return false;
  if (ledger.known.has(copy)) return false;
  if (ledger.num_open == 0) return true;
  const auto is_open = [&](Place place) {
    const auto found = ledger.reached.find(place);
    return found != ledger.reached.end() && found->second.objects > 0;
  };
  return !is_open(variable) && !is_open(memory_of(copy));
}

}  // namespace paddle_ngraph
