#include "core/paddle/exposure.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/common/error.h"
#include "core/common/fork_safe_mutex.h"
#include "core/common/memory_pool.h"
#include "core/paddle/shared_parameters.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// Maximum number of records of addresses that Python can no longer reach. Beyond it they are
// dropped, and all addresses are treated as having been reachable until then.
constexpr size_t kMaxEndedRecords = 8192;

// The address of a tensor or of its memory. Both are recorded: Python's object for a variable may
// be a copy of the tensor that shares its memory.
using Address = const void*;

// The exposure of a tensor or of its memory: Python code can write it while Python has an object
// that refers to it.
struct ExposureRecord {
  int objects = 0;     // number of Python objects that refer to the tensor or memory now
  uint64_t ended = 0;  // epoch at which the last such object was destroyed
};

Address memory_of(const phi::DenseTensor& tensor) {
  return tensor.Holder() == nullptr ? nullptr : tensor.Holder()->ptr();
}

// Copies bytes of the process from addresses that may be invalid, through a pipe: the kernel checks
// the addresses.
class MemoryReader {
 public:
  MemoryReader() {
    if (pipe2(ends_.data(), O_CLOEXEC) != 0)
      throw NgraphError("no file descriptor is left for a pipe");
  }
  ~MemoryReader() {
    for (int end : ends_) close(end);
  }
  MemoryReader(const MemoryReader&) = delete;
  MemoryReader& operator=(const MemoryReader&) = delete;

  // Copies an object of type T into `bytes`; false if its address is invalid.
  template <typename T>
  bool copy(const T* object, std::byte (*bytes)[sizeof(T)]) const {
    static_assert(sizeof(T) <= 512, "POSIX: a pipe has room for this many bytes at least");
    // Sanitizers, which intercept write(), would report freed memory.
    if (syscall(SYS_write, ends_[1], object, sizeof(T)) != sizeof(T)) return false;
    return read(ends_[0], bytes, sizeof(T)) == sizeof(T);
  }

 private:
  std::array<int, 2> ends_{};
};

// memory_of() for a tensor that may have been destroyed; null if the tensor's bytes are no tensor.
Address possible_memory_of(const phi::DenseTensor* tensor) {
  static const phi::DenseTensor example;
  const MemoryReader reader;
  alignas(phi::DenseTensor) std::byte tensor_bytes[sizeof(phi::DenseTensor)];
  alignas(phi::Allocation) std::byte memory_bytes[sizeof(phi::Allocation)];
  if (!reader.copy(tensor, &tensor_bytes)) return nullptr;
  // The pointer to the table of virtual functions.
  const auto* type = reinterpret_cast<const std::byte*>(&example);
  if (!std::equal(type, type + sizeof(void*), tensor_bytes)) return nullptr;
  // The copies are never destroyed, so that they hold no memory.
  const auto* memory = reinterpret_cast<const phi::DenseTensor*>(tensor_bytes)->Holder().get();
  if (memory == nullptr || !reader.copy(memory, &memory_bytes)) return nullptr;
  return reinterpret_cast<const phi::Allocation*>(memory_bytes)->ptr();
}

// Memory whose address code outside of Paddle may know; entries end with the memory.
class EscapedMemory {
 public:
  void add(const phi::DenseTensor& tensor) {
    if (!is_paddle_allocated(tensor)) return add_foreign(start_of(tensor) + tensor.meta().offset);
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
  static constexpr size_t kMaxAddressBlocks = 1 << 12;

  static uintptr_t start_of(const phi::DenseTensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.Holder()->ptr());
  }

  // Records the address of escaped memory that Paddle has not allocated. The memory may outlive the
  // tensor's holder of it, and may even be Paddle's (behind a capsule), so addresses are recorded
  // permanently. Beyond a maximum, the address blocks that contain them are recorded instead, and
  // blocks grow until their number is below the maximum.
  void add_foreign(uintptr_t address) {
    foreign_.insert(address >> block_bits_);
    while (foreign_.size() > kMaxAddressBlocks) {
      ++block_bits_;
      std::set<uintptr_t> larger;
      for (uintptr_t block : foreign_) larger.insert(block >> 1);
      foreign_.swap(larger);
    }
  }

  std::set<std::weak_ptr<phi::Allocation>, std::owner_less<>> own_;
  size_t next_cleanup_ = kFirstCleanup;
  // Addresses of memory that Paddle has not allocated, without their low bits.
  std::set<uintptr_t> foreign_;
  int block_bits_ = 0;
};

// Memory of weights that functions contain as constants, and that tensors of dynamic mode share.
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

  // Whether the set contains this memory. Freed memory is not contained, even if other memory has
  // been allocated at its address.
  bool has(const phi::Allocation* memory) const {
    const auto found = memory_.find(memory);
    return found != memory_.end() && !found->second.expired();
  }

 private:
  static constexpr size_t kFirstCleanup = 1024;

  std::unordered_map<const phi::Allocation*, std::weak_ptr<phi::Allocation>> memory_;
  size_t next_cleanup_ = kFirstCleanup;
};

// Number of WeightWriteScopes of this thread.
thread_local int num_own_write_scopes = 0;

struct ExposureTable {
  ForkSafeMutex mutex;
  // Guarded by the mutex, like all members below: number of program runs in progress, and the first
  // in the list of them.
  int runs = 0;
  ProgramRun* first_run = nullptr;
  // Exposure id -> addresses of the tensor and of its memory.
  std::unordered_map<uint64_t, std::array<Address, 2>> objects;
  std::unordered_map<Address, ExposureRecord> records;
  size_t num_exposed = 0;     // number of addresses to which some Python object refers
  uint64_t pruned_until = 0;  // epoch up to which records of destroyed objects have been removed
  EscapedMemory escaped;
  EscapedMemory shared;
  WatchedMemory watched;
  // Number of MemoryPins of each allocation.
  std::unordered_map<const phi::Allocation*, long> pinned;

  std::atomic<bool> is_any_pinned{false};
  std::atomic<bool> is_any_watched{false};
  std::atomic<int> writers{0};
  std::atomic<int> write_scopes{0};
  std::atomic<uint64_t> writes{1};
  std::atomic<uint64_t> num_exposures{1};

  // The table is never destroyed: at the end of the process, Python destroys tensor objects, which
  // access the table.
  static ExposureTable& instance() {
    static ExposureTable* const table = [] {
      auto made = std::make_unique<ExposureTable>();
      // After the mutex has registered its handlers, which run first. pthread_atfork() fails only
      // if no memory is left: weights are then treated as written in a forked process.
      static_cast<void>(pthread_atfork(nullptr, nullptr, ProgramRun::end_in_child));
      return made.release();
    }();
    return *table;
  }
};

}  // namespace

ProgramRun::ProgramRun(bool may_write, bool is_of_thread)
    : may_write_(may_write), is_of_thread_(is_of_thread), thread_(std::this_thread::get_id()) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  next_ = std::exchange(table.first_run, this);
  if (next_ != nullptr) next_->previous_ = this;
  ++table.runs;
  if (may_write_) ++table.writers;
}

ProgramRun::~ProgramRun() {
  std::lock_guard<std::mutex> lock(ExposureTable::instance().mutex);
  if (!has_ended_) end();
}

void ProgramRun::end() {
  auto& table = ExposureTable::instance();
  has_ended_ = true;
  (previous_ == nullptr ? table.first_run : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  --table.runs;
  if (!may_write_) return;
  ++table.writes;
  --table.writers;
}

void ProgramRun::end_in_child() {
  auto& table = ExposureTable::instance();
  for (ProgramRun *run = table.first_run, *next = nullptr; run != nullptr; run = next) {
    next = run->next_;
    if (run->is_of_thread_ && run->thread_ != std::this_thread::get_id()) run->end();
  }
  table.write_scopes = num_own_write_scopes;
}

void watch_weight(const std::shared_ptr<phi::Allocation>& memory) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.watched.add(memory);
  table.is_any_watched = true;
}

bool is_any_weight_watched() { return ExposureTable::instance().is_any_watched; }

bool is_watched_weight(const phi::DenseTensor& tensor) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  return table.watched.has(tensor.Holder().get());
}

WeightWriteScope::WeightWriteScope() {
  ++ExposureTable::instance().write_scopes;
  ++num_own_write_scopes;
}

WeightWriteScope::~WeightWriteScope() {
  auto& table = ExposureTable::instance();
  ++table.writes;
  --table.write_scopes;
  --num_own_write_scopes;
}

MemoryPin::MemoryPin(const std::vector<const phi::DenseTensor*>& tensors) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.is_any_pinned = true;
  for (const auto* tensor : tensors) {
    tensors_.push_back(*tensor);
    if (tensor->Holder() != nullptr) ++table.pinned[tensor->Holder().get()];
  }
}

MemoryPin::~MemoryPin() {
  auto& table = ExposureTable::instance();
  // The pinned memory is released after the lock, with the members: freeing may wait for the GIL.
  // Until then the memory has one holder more than is counted as a pin, which is safer than one too
  // few.
  std::lock_guard<std::mutex> lock(table.mutex);
  for (const auto& tensor : tensors_) {
    if (tensor.Holder() == nullptr) continue;
    const auto found = table.pinned.find(tensor.Holder().get());
    if (--found->second == 0) table.pinned.erase(found);
  }
  table.is_any_pinned = !table.pinned.empty();
}

long holder_count(const phi::DenseTensor& tensor) {
  auto& table = ExposureTable::instance();
  if (!table.is_any_pinned) return tensor.Holder().use_count();
  std::lock_guard<std::mutex> lock(table.mutex);
  const auto found = table.pinned.find(tensor.Holder().get());
  return tensor.Holder().use_count() - (found == table.pinned.end() ? 0 : found->second);
}

int num_weight_writers() {
  const auto& table = ExposureTable::instance();
  return table.writers + table.write_scopes;
}

void mark_weights_written() { ++ExposureTable::instance().writes; }

namespace {

uint64_t record(const std::array<Address, 2>& addresses) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  const uint64_t number = ++table.num_exposures;
  for (Address address : addresses) {
    if (table.records[address].objects++ == 0) ++table.num_exposed;
  }
  table.objects.emplace(number, addresses);
  return number;
}

}  // namespace

uint64_t record_exposure(const phi::DenseTensor& tensor) {
  return record({&tensor, memory_of(tensor)});
}

uint64_t record_possible_exposure(const phi::DenseTensor* tensor) {
  return record({tensor, possible_memory_of(tensor)});
}

void end_exposure(uint64_t number) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  const auto object = table.objects.find(number);
  if (object == table.objects.end()) return;
  const uint64_t now = ++table.num_exposures;
  for (Address address : object->second) {
    auto& record = table.records[address];
    record.ended = now;
    if (--record.objects == 0) --table.num_exposed;
  }
  table.objects.erase(object);
  if (table.records.size() - table.num_exposed <= kMaxEndedRecords) return;
  table.pruned_until = now;
  for (auto it = table.records.begin(); it != table.records.end();) {
    it = it->second.objects > 0 ? std::next(it) : table.records.erase(it);
  }
}

void record_address_escape(const phi::DenseTensor& tensor) {
  if (tensor.Holder() == nullptr) return;
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.escaped.add(tensor);
}

void record_memory_escape(const phi::DenseTensor& tensor) {
  if (tensor.Holder() == nullptr) return;
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  table.shared.add(tensor);
}

Epoch Epoch::now() {
  auto& table = ExposureTable::instance();
  // While a program that may write runs, each epoch is a new one: no two compare equal.
  const uint64_t writes = num_weight_writers() > 0 ? ++table.writes : table.writes.load();
  return {writes, table.num_exposures};
}

bool was_exposed_since(const phi::DenseTensor& tensor, const Epoch& epoch) {
  return was_exposed_since(&tensor, tensor, epoch);
}

bool was_exposed_since(const phi::DenseTensor* variable, const phi::DenseTensor& tensor,
                       const Epoch& epoch) {
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  if (table.pruned_until > epoch.exposures) return true;
  const auto was_exposed = [&](Address address) {
    const auto found = table.records.find(address);
    return found != table.records.end() &&
           (found->second.objects > 0 || found->second.ended > epoch.exposures);
  };
  return was_exposed(variable) || was_exposed(memory_of(tensor));
}

bool is_writable_by_others(const phi::DenseTensor& tensor, long own_holders) {
  if (tensor.Holder() == nullptr) return false;
  if (holder_count(tensor) > own_holders || !is_paddle_allocated(tensor)) return true;
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  return table.escaped.has(tensor);
}

bool has_escaped(const phi::DenseTensor& tensor) {
  if (!is_paddle_allocated(tensor)) return true;
  auto& table = ExposureTable::instance();
  std::lock_guard<std::mutex> lock(table.mutex);
  const auto found = table.records.find(memory_of(tensor));
  const bool is_exposed = found != table.records.end() && found->second.objects > 0;
  if (is_exposed || table.escaped.has(tensor)) return true;
  return tensor.Holder().use_count() > 1 && table.shared.has(tensor);
}

bool is_paddle_allocated(const phi::DenseTensor& tensor) {
  static const phi::DenseTensor example = allocate({ElementType::f32, {1}});
  if (tensor.Holder() == nullptr) return false;
  const phi::Allocation* shared = SharedParameters::source_of(*tensor.Holder());
  const phi::Allocation& memory = shared == nullptr ? *tensor.Holder() : *shared;
  return typeid(memory) == typeid(*example.Holder()) || MemoryPool::owns(memory);
}

QuiescenceLock::QuiescenceLock() : lock_(ExposureTable::instance().mutex) {}

bool QuiescenceLock::may_swap_buffer(const phi::DenseTensor* variable,
                                     const phi::DenseTensor& copy) const {
  const auto& table = ExposureTable::instance();
  if (table.runs != 1 || !is_sole_holder(copy) || !is_paddle_allocated(copy)) return false;
  if (table.escaped.has(copy)) return false;
  if (table.num_exposed == 0) return true;
  const auto is_exposed = [&](Address address) {
    const auto found = table.records.find(address);
    return found != table.records.end() && found->second.objects > 0;
  };
  return !is_exposed(variable) && !is_exposed(memory_of(copy));
}

}  // namespace paddle_ngraph
