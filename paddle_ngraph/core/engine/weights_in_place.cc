#include "core/engine/weights_in_place.h"

#include <algorithm>

#include "core/engine/ngraph_function.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

WeightsInPlace::WeightsInPlace(const WeightWatch& watch, const Inputs& inputs) {
  for (size_t input : watch.inputs()) addresses_.push_back(memory(*inputs[input]));
}

bool WeightsInPlace::is_valid_for(const WeightWatch& watch, const Inputs& inputs) const {
  const auto is_same_address = [&](size_t input, const void* address) {
    return memory(*inputs[input]) == address;
  };
  const auto& positions = watch.inputs();
  if (!std::equal(positions.begin(), positions.end(), addresses_.begin(), is_same_address))
    return false;
  if (is_packed_) return true;
  std::lock_guard<std::mutex> lock(mutex_);
  return is_consistent_ && (runs_ == 0 || watch.are_untouched_since(since_, inputs));
}

bool WeightsInPlace::begin(const WeightWatch& watch, const Inputs& inputs, const Epoch& since) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (runs_ == 0) since_ = since;
  // A run in progress may have packed weights that were written since `since_`, and would detect
  // the write only at its end, after this run.
  if (!watch.are_untouched_since(since_, inputs)) is_consistent_ = false;
  if (!is_consistent_) return false;
  ++runs_;
  return true;
}

void WeightsInPlace::end(const WeightWatch& watch, const Inputs& inputs, bool has_packed_all) {
  std::lock_guard<std::mutex> lock(mutex_);
  --runs_;
  if (!watch.are_untouched_since(since_, inputs)) is_consistent_ = false;
  if (is_consistent_ && runs_ == 0 && has_packed_all) is_packed_ = true;
}

WeightsInPlace::Run::Run(const NgraphFunction& function, const WeightWatch& watch,
                         const Inputs& inputs, const Epoch& since)
    : function_(function), watch_(watch), inputs_(inputs) {
  auto* const weights = function.weights_in_place();
  if (weights == nullptr || weights->is_packed_) return;
  has_started_ = may_pack_ = weights->begin(watch, inputs, since);
}

WeightsInPlace::Run::~Run() {
  if (!may_pack_) return;
  function_.weights_in_place()->end(watch_, inputs_, has_computed_ && !function_.may_pack());
}

}  // namespace paddle_ngraph
