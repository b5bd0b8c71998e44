#include "core/engine/function_order.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/common/error.h"
#include "core/engine/model_builder.h"
#include "core/engine/ngraph_engine.h"
#include "core/paddle/flags.h"
#include "core/paddle/interruption.h"

namespace paddle_ngraph {

namespace {

std::atomic<size_t>& bytes_of_all() {
  static std::atomic<size_t> bytes{0};
  return bytes;
}

}  // namespace

FunctionOrder::FunctionOrder(std::shared_ptr<const NgraphEngine> engine, Signature key,
                             std::shared_ptr<const Snapshot> snapshot, const Settings& settings)
    : engine_(std::move(engine)),
      key_(std::move(key)),
      snapshot_(std::move(snapshot)),
      settings_(settings),
      num_bytes_(snapshot_->num_bytes()) {
  bytes_of_all() += num_bytes_;
  engine_->ordered_ = this;
}

FunctionOrder::~FunctionOrder() { free(); }

void FunctionOrder::build() {
  try {
    engine_->build_and_keep(key_, *snapshot_, settings_, &is_wanted_);
    ++EngineStats::instance().functions_built_in_background;
  } catch (const InvalidInput&) {  // it may be that of this key alone
    keep_failure(false);
  } catch (const Interrupted&) {  // which says nothing of the function: a run gives another order
  } catch (...) {
    keep_failure(has_run_natively_ && !makes_empty(graph(), shapes()));
  }
  free();
}

void FunctionOrder::cancel() {
  is_wanted_ = false;
  const FunctionOrder* mine = this;
  engine_->ordered_.compare_exchange_strong(mine, nullptr);
}

void FunctionOrder::keep_failure(bool is_for_all) const {
  if (is_wanted_) engine_->keep_failure(key_, std::current_exception(), is_for_all);
}

NgraphIO FunctionOrder::shapes() const {
  NgraphIO io;
  io.inputs = snapshot_->inputs();
  return io;
}

const std::string& FunctionOrder::graph() const { return engine_->graph(); }

int64_t FunctionOrder::runs_meanwhile() const { return engine_->runs_meanwhile_; }

bool FunctionOrder::has_room_for(size_t bytes) {
  const size_t waiting = bytes_of_all();
  const auto most = static_cast<size_t>(std::max(0, FLAGS_ngraph_cache_mb)) << 20;
  return waiting == 0 || waiting + bytes <= most;
}

void FunctionOrder::free() {
  cancel();
  bytes_of_all() -= std::exchange(num_bytes_, 0);
}

}  // namespace paddle_ngraph
