// An estimate of how much a function has to compute.
#pragma once

#include <openvino/core/model.hpp>

namespace paddle_ngraph {

// A rough number of nanoseconds that one thread takes for a run: good enough to recognize work too
// small to be shared. Infinite if shapes are open or the body of a loop decides when it ends.
double estimated_ns(const ov::Model& model);

}  // namespace paddle_ngraph
