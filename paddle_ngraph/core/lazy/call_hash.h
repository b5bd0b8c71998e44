// Hashes of calls: equal for calls that match (call_matching.h), so that one of thousands of known
// calls is found without comparing the others.
#pragma once

#include <cstddef>
#include <vector>

#include "core/lazy/traced_call.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

class Trace;

size_t hash_of(const TracedCall& call);

// The hash of a call that would follow `trace`; `given`: its arguments. Notes new tensors in the
// trace, and clears them.
size_t hash_of(Trace* trace, const InterceptedFunction& function, bool has_gradient,
               const PyObjects& given);

}  // namespace paddle_ngraph
