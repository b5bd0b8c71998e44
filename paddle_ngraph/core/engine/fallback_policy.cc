#include "core/engine/fallback_policy.h"

#include "core/common/error.h"
#include "core/engine/model_builder.h"
#include "core/paddle/random.h"

namespace paddle_ngraph {

namespace {

// After this number of runs in a row whose integers overflow int32 in the engine, or whose kernel
// of Paddle fails only there, the operator permanently falls back to Paddle.
constexpr int kMaxFailedRuns = 8;

// The message of a failure, with its code and operator if it is an error of the plugin.
NgraphError as_ngraph_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const NgraphError& error) {
    return error;
  } catch (const std::exception& error) {
    return NgraphError(error.what());
  }
}

}  // namespace

bool FallbackPolicy::is_denied() const { return denied_at_ == denylist_version(); }

void FallbackPolicy::run(const NgraphIO& io) const { run_fallback(graph_.text(), io); }

bool FallbackPolicy::try_run(const NgraphIO& io) const {
  const bool has_states = graph_.header().num_states > 0;
  StreamGuard stream(!has_states);
  try {
    run(io);
    stream.used();
    return true;
  } catch (const NgraphError&) {
    // The fallback is unavailable, and nothing has run: the engine may try.
  } catch (const std::exception&) {
    // Anything else may have written states: a run must not be repeated then.
    if (has_states) throw;
  }
  return false;
}

void FallbackPolicy::run_after_failure(const NgraphIO& io, const std::exception_ptr& failure,
                                       bool is_deniable) {
  const uint64_t version = denylist_version();
  const NgraphError error = as_ngraph_error(failure);
  const bool is_by_data =
      error.code() == ErrorCode::kInt32Overflow || error.code() == ErrorCode::kKernelFailed;
  try {
    run(io);
  } catch (const NgraphError&) {
    // The fallback is unavailable: the error of the engine is the answer.
    clear_failure(graph_.text());
    std::rethrow_exception(failure);
  } catch (...) {
    clear_failure(graph_.text());
    throw;
  }
  if (is_by_data && ++failed_runs_ < kMaxFailedRuns) return clear_failure(graph_.text());
  if (is_by_data) {
    failed_runs_ = 0;
  } else if (!is_deniable) {
    return;
  } else if (creates_empty_tensor(graph_.text(), io)) {
    // Runs of other sizes, without an empty tensor, may succeed: the graph is not denylisted.
    return clear_failure(graph_.text());
  }
  deny_graph(graph_.text(), error);
  denied_at_ = version;
}

}  // namespace paddle_ngraph
