// The custom operator `ngraph_select_ring`: has the collective that reads its result use a ring.
//
// Paddle sets the ring of a collective on the CPU's one device context when it prepares the
// program, so that all collectives would use the ring of the last one.
#include <string>

#include "paddle/phi/api/ext/op_meta_info.h"
#include "paddle/phi/backends/context_pool.h"
// The instance that the header defines is Paddle's only if its symbol is visible.
#pragma GCC visibility push(default)
#include "paddle/phi/core/distributed/comm_context_manager.h"
#pragma GCC visibility pop

#include "core/common/error.h"

namespace paddle_ngraph {

namespace {

void select_ring(paddle::CustomOpKernelContext* context) {
  const std::string ring = std::to_string(paddle::any_cast<int>(context->Attrs().at(0)));
  const auto& rings = phi::distributed::CommContextManager::GetInstance();
  if (!rings.Has(ring)) throw NgraphError(concat("there is no ring ", ring));
  phi::DeviceContextPool::Instance().Get(phi::CPUPlace())->SetCommContext(rings.Get(ring));
}

[[maybe_unused]] const bool is_registered = [] {
  paddle::OpMetaInfoBuilder("ngraph_select_ring", 0)
      .Inputs({"X"})
      .Outputs({"Out"})
      .SetInplaceMap({{"X", "Out"}})
      .Attrs({"ring_id: int"})
      .SetKernelFn(select_ring);
  return true;
}();

}  // namespace

}  // namespace paddle_ngraph
