// The shapes of an operator's results by Paddle's shape inference (InferMeta), without running the
// operator: for operators without a rule of their own in result_shapes.h.
#pragma once

#include "core/lazy/traced_call.h"
#include "core/paddle/python_tensors.h"

namespace paddle_ngraph {

// Computes the shapes of the results of a call for other arguments. Returns false if Paddle would
// raise, an argument has another type than declared, or a result is empty. Paddle's inference reads
// no elements of tensors, so operators whose shapes depend on these are out of the question.
bool infer_result_shapes(const TracedCall& call, const PyObjects& given, ResultShapes* found);

}  // namespace paddle_ngraph
