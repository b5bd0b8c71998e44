// Deferred operator errors: reports of the operators of a model with dynamic shapes.
//
// These operators do not throw. The plugin reads the sizes of several operators before it computes
// the first of them, and each operator compares them with the sizes of the last run that has
// computed it. If a run ends in between, the next run computes with sizes of the aborted run, and
// with arbitrary memory contents. Therefore an operator reports its error, continues with valid
// values, and the run is rejected when it has ended.
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

// The deferred errors of one model. Its operators refer to them by an id, which is stored with the
// model.
class DeferredErrors {
 public:
  // The id in place of a model's, if all shapes are static: its operators throw errors instead of
  // recording them.
  static constexpr int64_t kNone = 0;

  // If any shape in the model is dynamic, gives its operators a new id, under which they report
  // errors instead of throwing. Returns the id; kNone if all shapes are static.
  static int64_t assign_id(ov::Model* model);

  // The object with this id: all callers share it while any of them retains it. nullptr for kNone.
  static std::shared_ptr<DeferredErrors> of(int64_t id);

  // Called by an operator instead of throwing `error` at once: records it for the runs of the model
  // with this id. Returns whether such a run is in progress, which will read the report; else the
  // operator throws.
  static bool report(int64_t id, const InvalidInput& error);

  // Whether a run of the model with this id has reported an error that no run has read. If so,
  // counts a report for all runs in progress: a loop that ends for it may be that of another run,
  // which is then repeated.
  static bool report_again(int64_t id);

  DeferredErrors();
  ~DeferredErrors();
  DeferredErrors(const DeferredErrors&) = delete;
  DeferredErrors& operator=(const DeferredErrors&) = delete;

  // Calls run() and returns its result. Throws InvalidInput if its operators have reported an
  // error. If runs overlap and an error was reported, each run is repeated alone to find out
  // whether the error is its own.
  template <typename Run>
  auto run_and_check(const Run& run) {
    ProcessState& state = process_state();
    {
      const auto shared_run = begin_shared_run(&state);
      const ErrorScope scope(&state);
      auto done = run();
      if (!scope.has_new_reports()) return done;
      if (const auto error = scope.own_report()) throw InvalidInput(*error);
    }
    const auto exclusive_run = begin_exclusive_run(&state);
    const ErrorScope scope(&state);
    auto done = run();
    if (const auto error = scope.own_report()) throw InvalidInput(*error);
    return done;
  }

 private:
  // The object with this id, if some caller retains it.
  static std::shared_ptr<DeferredErrors> find(int64_t id);

  // The state of the runs in one process. A forked process gets its own: the threads of the parent
  // do not exist there to end their runs.
  struct ProcessState {
    const pid_t process = getpid();
    // Locked by a thread that waits until no run is in progress, so that none begins.
    std::mutex gate;
    std::shared_mutex runs;
    std::atomic<int> running{0};
    std::atomic<uint64_t> num_started{0};
    std::atomic<uint64_t> num_reports{0};
    std::mutex report_mutex;
    // The first error that was reported; nothing after a run has read it.
    std::optional<InvalidInput> report;
  };

  // Counts a run as in progress while this object lives, and finds errors of the run.
  class ErrorScope {
   public:
    explicit ErrorScope(ProcessState* state);
    ~ErrorScope();
    ErrorScope(const ErrorScope&) = delete;
    ErrorScope& operator=(const ErrorScope&) = delete;

    // Whether any run has reported an error since this one began.
    bool has_new_reports() const;
    // The first reported error; nothing if another run was in progress, which may have reported it.
    std::optional<InvalidInput> own_report() const;

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

// Attributes of operators that check data: the error that a run gets if the check fails.
struct ErrorAttributes {
  std::string message;
  int64_t code = static_cast<int64_t>(ErrorCode::kGeneral);
  int64_t op_id = kNoOperator;

  template <typename Visit>
  void visit(const Visit& visit) {
    visit("message", message);
    visit("code", code);
    visit("op_id", op_id);
  }

  // The error of a failed check; `details` are appended to the message.
  InvalidInput error(const std::string& details = {}) const {
    return InvalidInput(message + details, static_cast<ErrorCode>(code), op_id);
  }
};

// Base of operators that check the contents of tensors, and pass these on.
class ContentCheckOp : public ExtensionOp {
 public:
  OPENVINO_OP("ContentCheckOp", "paddle_ngraph", ExtensionOp);

  using ExtensionOp::ExtensionOp;

  virtual void set_deferred_errors_id(int64_t id) = 0;

 protected:
  // Reports an error to the run of the model with this id, which reads reports at its end. If no
  // such run is in progress, throws the error, tagged for found_invalid_input().
  static void report_error(int64_t deferred_errors_id, const InvalidInput& error);
};

}  // namespace paddle_ngraph
