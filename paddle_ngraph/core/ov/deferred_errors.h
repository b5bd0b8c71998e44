// What operators find wrong in a run of a model whose sizes only runs tell.
//
// They throw nothing there. The plugin looks at the sizes of several operators before it computes
// the first of them, and each compares them with those of the last run that has computed it. Where
// a run ends in between, the next one computes with sizes of that run, and with whatever is in
// memory there. So an operator says what is wrong, goes on with something that is right, and the
// run is refused when it is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include <openvino/core/model.hpp>
#include <sys/types.h>
#include <unistd.h>

#include "core/common/error.h"
#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// Those of one model. Its operators know it by a number, which is stored with it.
class DeferredErrors {
 public:
  // That of a model of which every size is known: its operators throw.
  static constexpr int64_t kNone = 0;

  // Has the operators of a model say what they find, if any size in it is open. Returns the number.
  static int64_t assign_id(ov::Model* model);

  // Those of this number: the same ones for all who ask while anyone has them. nullptr for kNone.
  static std::shared_ptr<DeferredErrors> of(int64_t id);

  // Called by an operator. Returns whether a run goes on that will ask for it.
  static bool report(int64_t id, const std::string& text);

  DeferredErrors();
  ~DeferredErrors();
  DeferredErrors(const DeferredErrors&) = delete;
  DeferredErrors& operator=(const DeferredErrors&) = delete;

  // Calls run() and returns what it returns. Throws InvalidInput if its operators have said
  // something. If runs overlap and something was said, each shows alone whether it was that one.
  template <typename Run>
  auto run_and_check(const Run& run) {
    ProcessState& state = process_state();
    {
      const auto shared_run = begin_shared_run(&state);
      const ErrorScope scope(&state);
      auto done = run();
      if (!scope.has_new_reports()) return done;
      if (const auto text = scope.own_report()) throw InvalidInput(*text);
    }
    const auto exclusive_run = begin_exclusive_run(&state);
    const ErrorScope scope(&state);
    auto done = run();
    if (const auto text = scope.own_report()) throw InvalidInput(*text);
    return done;
  }

 private:
  // A forked process has its own: threads of the other one are not there to end their runs.
  struct ProcessState {
    const pid_t process = getpid();
    std::mutex gate;  // nobody begins while somebody waits for all others
    std::shared_mutex runs;
    std::atomic<int> running{0};
    std::atomic<uint64_t> num_started{0};
    std::atomic<uint64_t> num_reports{0};
    std::mutex text_mutex;
    std::string text;  // what was said first; none: nothing since a run has asked
  };

  // A run, from its beginning to its end.
  class ErrorScope {
   public:
    explicit ErrorScope(ProcessState* state);
    ~ErrorScope();
    ErrorScope(const ErrorScope&) = delete;
    ErrorScope& operator=(const ErrorScope&) = delete;

    // Whether anything was said meanwhile.
    bool has_new_reports() const;
    // What was said first, if no other run went on meanwhile.
    std::optional<std::string> own_report() const;

   private:
    ProcessState* state_;
    bool began_alone_;
    uint64_t num_started_;
    uint64_t reports_before_;
  };

  ProcessState& process_state();
  static std::shared_lock<std::shared_mutex> begin_shared_run(ProcessState* state);
  static std::unique_lock<std::shared_mutex> begin_exclusive_run(ProcessState* state);

  std::atomic<ProcessState*> state_;
};

// An operator that looks at contents.
class ContentCheckOp : public ExtensionOp {
 public:
  OPENVINO_OP("ContentCheckOp", "paddle_ngraph", ExtensionOp);

  using ExtensionOp::ExtensionOp;

  virtual void set_deferred_errors_id(int64_t id) = 0;

 protected:
  // Says what is wrong; throws it as InvalidInput where no run asks.
  static void report_error(int64_t deferred_errors_id, const std::string& text);
};

}  // namespace paddle_ngraph
