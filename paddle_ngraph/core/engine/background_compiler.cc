#include "core/engine/background_compiler.h"

#include <algorithm>
#include <exception>
#include <string>

#include "core/common/error.h"
#include "core/engine/model_builder.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

MissingFunction BackgroundCompiler::missing_function() {
  const std::string& when = FLAGS_ngraph_background_compile;
  if (when == "0") return MissingFunction::kWaitUntilSignal;
  if (when == "auto" || when == "1") return MissingFunction::kMayFallBack;
  throw InvalidInput(concat("FLAGS_ngraph_background_compile=", when, ": use auto, 1 or 0"));
}

bool BackgroundCompiler::is_idle(MissingFunction missing) const {
  if (pending_job_ == nullptr) return true;
  if (missing == MissingFunction::kMayFallBack) return false;
  wait_for_compile_jobs();
  return true;
}

bool BackgroundCompiler::should_compile(const EngineGraph::Inputs& inputs) const {
  return should_compile_in_background(graph_.text(), inputs, min_fallback_us_);
}

void BackgroundCompiler::submit(const std::shared_ptr<CompileJob>& job) {
  try {
    submit_compile_job(job);
  } catch (const std::exception&) {  // no job is queued then: the next run submits another one
  }
}

void BackgroundCompiler::note_fallback_run(int64_t us) {
  const int64_t least = min_fallback_us_;
  if (least == 0 || us < least) min_fallback_us_ = std::max<int64_t>(us, 1);
}

void BackgroundCompiler::end(const CompileJob& job) {
  const CompileJob* pending = &job;
  pending_job_.compare_exchange_strong(pending, nullptr);
}

}  // namespace paddle_ngraph
