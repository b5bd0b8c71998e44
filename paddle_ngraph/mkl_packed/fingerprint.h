// The contents of a weight in a few bytes, at the speed of memory: whether a tensor still holds what it
// held. Paddle counts writes in some places only (not those of an Executor, for one), so that the
// contents themselves are the one thing to go by.
#pragma once

#include <array>
#include <cstdint>

namespace paddle_ngraph::mkl_packed {

using Fingerprint = std::array<uint64_t, 4>;

Fingerprint fingerprint(const float* data, int64_t count);

}  // namespace paddle_ngraph::mkl_packed
