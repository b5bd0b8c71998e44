// Bounds of the caches of kernels in OpenVINO's CPU plugin. A kernel of a matmul takes 0.6 MB with
// AVX-512, so that caches of a thousand kernels take more memory than most networks.
#pragma once

#include <openvino/core/model.hpp>
#include <openvino/runtime/core.hpp>

namespace paddle_ngraph {

// The limits of num_cached_kernels().
constexpr int kMinCachedKernels = 8;
constexpr int kMaxCachedKernels = 200;

// Number of kernels of each type that a function of this model caches, for sizes that recur: those
// of the last few sizes. More than kMaxCachedKernels would mean gigabytes of packed weights after
// some hundred sizes; creating a kernel again is cheap.
int num_cached_kernels(const ov::Model& model);

// Bounds the cache of primitives of the plugin's oneDNN, which is one for the process, unless the
// user has set its capacity by ONEDNN_PRIMITIVE_CACHE_CAPACITY or DNNL_PRIMITIVE_CACHE_CAPACITY.
// The plugin exports no function for that: its oneDNN reads the variable when it creates the first
// primitive, which this function does. Without effect if that has happened before. Paddle's oneDNN
// keeps its own capacity.
void bound_primitive_cache(ov::Core* core);

}  // namespace paddle_ngraph
