// Spans of work inside runs and builds, which are noted while a profile is measured.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace paddle_ngraph {

// While a profile is measured, its number; else 0. Each engine hands the inputs of one run to it.
inline std::atomic<uint64_t> profile_number{0};

inline bool is_profiling() { return profile_number.load(std::memory_order_relaxed) != 0; }

enum class WorkKind : uint8_t {
  kCopy,     // inputs that are not row-major, or whose contents are in a key; weights; states
  kSample,   // random numbers
  kCompute,  // the compiled model
  kUpdate,   // optimizer updates that write states in place
  kWait,     // for a build, in this thread or another one
  kConvert,  // the graph to a model
  kCompile,  // the model
};

// Their names in profiles, in the order of the enumeration.
inline constexpr std::array<const char*, 7> kWorks = {
    {"copies", "random numbers", "compute", "optimizer updates", "waits", "convert", "compile"}};
static_assert(kWorks.size() == static_cast<size_t>(WorkKind::kCompile) + 1);

struct FinishedSpan {
  WorkKind work;
  uint32_t thread;   // as in events
  int64_t start_ns;  // on the monotonic clock
  int64_t num_ns;
};

// A span from the creation of the object to its end. Without a profile, one load.
class WorkSpan {
 public:
  explicit WorkSpan(WorkKind work) noexcept;
  ~WorkSpan();
  WorkSpan(const WorkSpan&) = delete;
  WorkSpan& operator=(const WorkSpan&) = delete;

 private:
  static constexpr int64_t kOff = -1;

  const WorkKind work_;
  const int64_t start_ns_;
};

// Removes and returns the spans since the last call, in the order of their ends; of many, the first
// ones.
std::vector<FinishedSpan> take_work_spans();

}  // namespace paddle_ngraph
