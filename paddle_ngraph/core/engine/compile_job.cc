#include "core/engine/compile_job.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/common/error.h"
#include "core/engine/background_compiler.h"
#include "core/engine/function_store.h"
#include "core/engine/model_builder.h"
#include "core/paddle/flags.h"
#include "core/paddle/interruption.h"

namespace paddle_ngraph {

namespace {

std::atomic<size_t>& total_snapshot_bytes() {
  static std::atomic<size_t> bytes{0};
  return bytes;
}

}  // namespace

CompileJob::CompileJob(std::shared_ptr<FunctionStore> functions, BackgroundCompiler* background,
                       Signature key, std::shared_ptr<const Snapshot> snapshot,
                       const Settings& settings)
    : functions_(std::move(functions)),
      background_(background),
      key_(std::move(key)),
      snapshot_(std::move(snapshot)),
      settings_(settings),
      num_bytes_(snapshot_->num_bytes()) {
  total_snapshot_bytes() += num_bytes_;
  background_->begin(*this);
}

CompileJob::~CompileJob() { free(); }

void CompileJob::build() {
  try {
    functions_->build_and_cache(key_, *snapshot_, settings_, &is_active_,
                                Reason::kBuiltInBackground);
  } catch (const InvalidInput&) {
    // The input may be invalid for this key only: other keys can be built.
    record_failure(false);
  } catch (const PythonInterrupt&) {
    // An interrupted build records nothing: the next run submits another job.
  } catch (...) {
    record_failure(fallback_succeeded_ && !creates_empty_tensor(graph(), shapes()));
  }
  free();
}

void CompileJob::cancel() {
  is_active_ = false;
  background_->end(*this);
}

void CompileJob::record_failure(bool is_for_all) const {
  if (is_active_) background_->failures().record(key_, std::current_exception(), is_for_all);
}

NgraphIO CompileJob::shapes() const {
  NgraphIO io;
  io.inputs = snapshot_->inputs();
  return io;
}

const std::string& CompileJob::graph() const { return functions_->graph().text(); }

bool CompileJob::has_capacity_for(size_t bytes) {
  const size_t pending_bytes = total_snapshot_bytes();
  const auto max = static_cast<size_t>(std::max(0, FLAGS_ngraph_cache_mb)) << 20;
  return pending_bytes == 0 || pending_bytes + bytes <= max;
}

void CompileJob::free() {
  cancel();
  total_snapshot_bytes() -= std::exchange(num_bytes_, 0);
}

}  // namespace paddle_ngraph
