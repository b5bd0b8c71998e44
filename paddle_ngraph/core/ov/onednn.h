// oneDNN for the core's operators: one engine for the process, and one stream per thread.
#pragma once

#include <dnnl.hpp>

namespace paddle_ngraph {

inline const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

inline dnnl::stream& stream() {
  thread_local dnnl::stream own(engine());
  return own;
}

// Wraps existing memory as a oneDNN memory object, without a copy.
inline dnnl::memory view(const dnnl::memory::desc& desc, const void* data) {
  return dnnl::memory(desc, engine(), const_cast<void*>(data));
}

}  // namespace paddle_ngraph
