// How much a function has to compute, about.
#pragma once

#include <openvino/core/model.hpp>

namespace paddle_ngraph {

// Nanoseconds that one thread takes for a run, by round numbers: good enough to tell what is too
// little to be shared. Infinite where shapes are open or a loop ends when its body says so.
double work_ns(const ov::Model& model);

}  // namespace paddle_ngraph
