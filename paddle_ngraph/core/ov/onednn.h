// oneDNN as the core's operators use it: one engine, and a stream for each thread.
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

// Memory that is there, as oneDNN takes it.
inline dnnl::memory view(const dnnl::memory::desc& desc, const void* data) {
  return dnnl::memory(desc, engine(), const_cast<void*>(data));
}

}  // namespace paddle_ngraph
