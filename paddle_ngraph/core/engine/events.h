// Events: one for each run of a subgraph or program, and for each function that was built or
// loaded. A ring has the last of them; totals by reason count all. `paddle_ngraph.stats()` and
// `explain()` are views of both.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#include <chrono>
#endif

namespace paddle_ngraph {

enum class Outcome : uint8_t {
  kEngine,    // the engine ran a function
  kNative,    // Paddle ran
  kRaised,    // the run raised an exception, instead of results
  kFunction,  // a function was built or loaded: no run
};

// The reasons of events; each has one outcome, and concerns either subgraphs or what a frontend
// runs as a whole.
enum class Reason : uint8_t {
  kEngine,
  // Paddle ran a subgraph.
  kCompiling,
  kRareShape,
  kDenied,
  kNanCheck,
  kEmpty,
  kInput,
  kOverflow,
  kCheck,
  kOutOfMemory,
  kNotBuilt,
  kRunFailed,
  kForked,
  // Paddle ran a program, layer or trace.
  kNotConvertible,
  kCostRule,
  kEmptyFeed,
  kLodFeed,
  kMissingVariable,
  kUntranslatable,
  kNotRewritten,
  kConfiguration,
  kSamples,
  kWritesParameters,
  kOnednn,
  kHooks,
  kFilesChanged,
  kEngineFailed,
  kInBackward,
  kInnerLayers,
  kTiming,
  kBudget,
  kSlower,
  kGuard,
  kNewResults,
  kNoGraph,
  kOtherThread,
  kSharedMemory,
  kSignal,
  kNotCaptured,
  kOperatorChecks,
  // A run of a subgraph raised.
  kInterrupted,
  kStrict,
  kPartialWrite,
  kOutOfBounds,
  kPaddleRaised,
  kEngineRaised,
  // A function.
  kBuilt,
  kBuiltInBackground,
  kLoaded,
};

struct ReasonInfo {
  Outcome outcome;
  bool is_of_subgraph;
  const char* name;
  const char* sentence;
};

// In the order of the enumeration Reason.
inline constexpr std::array<ReasonInfo, 49> kReasons = {{
    {Outcome::kEngine, true, "engine", "the engine ran its function"},
    {Outcome::kNative, true, "compiling", "its function was compiled in the background"},
    {Outcome::kNative, true, "rare_shape", "inputs of its shapes are too rare for a function"},
    {Outcome::kNative, true, "denied", "it is on the denylist, after a failure"},
    {Outcome::kNative, true, "nan_check", "Paddle checks each operator for NaN"},
    {Outcome::kNative, true, "empty", "an input was empty"},
    {Outcome::kNative, true, "input", "an input had no data, a LoD or an undeclared dtype"},
    {Outcome::kNative, true, "overflow", "its integers needed 64 bits"},
    {Outcome::kNative, true, "check", "a check of its data failed"},
    {Outcome::kNative, true, "out_of_memory", "the engine was out of memory"},
    {Outcome::kNative, true, "not_built", "its function could not be built"},
    {Outcome::kNative, true, "run_failed", "its function failed"},
    {Outcome::kNative, true, "forked", "the process was forked during a use of OpenVINO"},
    {Outcome::kNative, false, "not_convertible", "none of its operators can be converted"},
    {Outcome::kNative, false, "cost_rule", "its subgraphs are too small to pay off"},
    {Outcome::kNative, false, "empty_feed", "an input was empty"},
    {Outcome::kNative, false, "lod_feed", "an input had a LoD"},
    {Outcome::kNative, false, "missing_variable", "a variable that it reads had no data"},
    {Outcome::kNative, false, "untranslatable", "its ProgramDesc cannot be translated"},
    {Outcome::kNative, false, "not_rewritten", "the program pass failed"},
    {Outcome::kNative, false, "configuration", "the engine does not support its configuration"},
    {Outcome::kNative, false, "samples", "it samples random numbers"},
    {Outcome::kNative, false, "writes_parameters", "it changes its parameters"},
    {Outcome::kNative, false, "onednn", "Paddle's oneDNN is faster"},
    {Outcome::kNative, false, "hooks", "its operators have hooks, or a handle may write variables"},
    {Outcome::kNative, false, "files_changed", "its files have changed since it was created"},
    {Outcome::kNative, false, "engine_failed", "the engine failed"},
    {Outcome::kNative, false, "in_backward", "it was called in a backward pass"},
    {Outcome::kNative, false, "inner_layers", "the layers that it calls are compiled instead"},
    {Outcome::kNative, false, "timing", "calls by Paddle were timed"},
    {Outcome::kNative, false, "budget", "a build would have exceeded the budget for tuning"},
    {Outcome::kNative, false, "slower", "compiled calls were slower"},
    {Outcome::kNative, false, "guard", "its operators, sizes or constants matched no known trace"},
    {Outcome::kNative, false, "new_results", "other results than before were needed"},
    {Outcome::kNative, false, "no_graph", "no graph of its operators can be built"},
    {Outcome::kNative, false, "other_thread", "another thread trained, or was in Paddle"},
    {Outcome::kNative, false, "shared_memory", "it overwrites memory that several variables share"},
    {Outcome::kNative, false, "signal", "a signal arrived while its programs were created"},
    {Outcome::kNative, false, "not_captured", "none of its operators could be deferred"},
    {Outcome::kNative, false, "operator_checks", "Paddle checks the results of each operator"},
    {Outcome::kRaised, true, "interrupted", "the run was interrupted"},
    {Outcome::kRaised, true, "strict", "FLAGS_ngraph_strict does not let Paddle run instead"},
    {Outcome::kRaised, true, "partial_write", "the run failed after it had written states"},
    {Outcome::kRaised, true, "out_of_bounds", "an index was out of bounds"},
    {Outcome::kRaised, true, "paddle_raised", "Paddle's operators raised an error"},
    {Outcome::kRaised, true, "engine_raised", "the engine failed, and Paddle cannot run it"},
    {Outcome::kFunction, true, "built", "a function was built"},
    {Outcome::kFunction, true, "built_in_background", "a function was built in the background"},
    {Outcome::kFunction, true, "loaded", "a function was loaded from disk"},
}};
static_assert(kReasons.size() == static_cast<size_t>(Reason::kLoaded) + 1);

inline const ReasonInfo& info_of(Reason reason) { return kReasons[static_cast<size_t>(reason)]; }

// Numbers that are added up beside the events.
enum class Quantity : uint8_t {
  kFunctionsReused,
  kFunctionsWithWeights,
  kFunctionsWithWeightsInPlace,
  kStepsInPlace,
  kOptimizerSteps,
  kClippingLoops,
  kGradientsHeld,
  kRestsSharedOut,
  kKernelCalls,
  kKernelCallNs,
  kKernelResultsCopied,
};

// Their names in stats(), in the order of the enumeration.
inline constexpr std::array<const char*, 11> kQuantities = {
    {"functions_reused", "functions_with_weights", "functions_with_weights_in_place",
     "steps_in_place", "optimizer_steps", "clipping_loops", "gradients_held", "rests_shared_out",
     "kernel_calls", "kernel_call_ns", "kernel_results_copied"}};
static_assert(kQuantities.size() == static_cast<size_t>(Quantity::kKernelResultsCopied) + 1);

struct Event {
  uint64_t number;    // of the event in the process, from 0
  uint32_t thread;    // number of the thread, which a later thread may reuse
  uint64_t subgraph;  // id of the subgraph or program; 0: unknown
  Reason reason;
  int64_t start_ns;  // on the monotonic clock
  int64_t num_ns;    // duration
};

// The present time in ticks, for record_event(). Reading the time stamp counter takes half as long
// as the monotonic clock, which all processors of x86-64 with a constant counter allow.
inline int64_t ticks() {
#if defined(__x86_64__)
  return static_cast<int64_t>(__builtin_ia32_rdtsc());
#else
  return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

// Records an event that began at `start` and ends now. Takes no lock, and calls no Python.
void record_event(Reason reason, uint64_t subgraph, int64_t start) noexcept;

// The number of this thread in events.
uint32_t thread_of_events() noexcept;

// Adds to a quantity of this thread.
void add(Quantity quantity, uint64_t number = 1) noexcept;

// The sums over all threads, also those that have ended, since the last reset_totals().
struct Totals {
  std::array<uint64_t, kReasons.size()> events{};
  std::array<uint64_t, kQuantities.size()> quantities{};
};
Totals totals();

// The last events since the last reset_totals(), oldest first, `limit` of them at most.
std::vector<Event> last_events(size_t limit);

void reset_totals();

// An id for a program or layer that has no graph string; not that of any subgraph.
uint64_t next_program_id();

// The nanoseconds that record_event() takes, with its two readings of the clock: the mean of
// `count` events, which count as events.
double measure_event_ns(size_t count);

}  // namespace paddle_ngraph
