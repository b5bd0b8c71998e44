// Estimate of the time in which a function computes, from its nodes.
#pragma once

#include <openvino/core/model.hpp>

namespace paddle_ngraph {

// Rough number of nanoseconds that one thread takes for a run: precise enough to recognize work too
// small to be shared. Infinite if shapes are dynamic or the trip count of a loop is determined by
// its body.
double estimated_ns(const ov::Model& model);

}  // namespace paddle_ngraph
