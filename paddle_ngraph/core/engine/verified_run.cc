#include "core/engine/verified_run.h"

#include <exception>
#include <utility>

#include "core/common/fault_injection.h"
#include "core/paddle/flags.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// Copies tensors; returns whether memory sufficed. They are copied, not shared: a further holder of
// their memory would change how the engine runs, which exchanges buffers and reads weights in place
// where it knows all holders.
bool append_copies(const std::vector<phi::DenseTensor*>& tensors, size_t first,
                   std::vector<phi::DenseTensor>* copies) {
  try {
    inject_fault(Step::kCopy);
    for (size_t i = first; i < tensors.size(); ++i) {
      const auto* tensor = tensors[i];
      copies->push_back(tensor->initialized() ? copy_of(*tensor) : phi::DenseTensor());
    }
    return true;
  } catch (const std::exception&) {  // an error of an allocator, of which Paddle has its own types
    return false;
  }
}

}  // namespace

bool VerifiedRuns::next() {
  const int every = FLAGS_ngraph_verify;
  return every > 0 && runs_++ % static_cast<uint64_t>(every) == 0;
}

bool VerifiedRuns::profiles() const {
  const uint64_t number = profile_number.load(std::memory_order_relaxed);
  return number != 0 && number != profile_.load(std::memory_order_relaxed);
}

void VerifiedRun::profile(const std::string& graph) {
  if (is_copied_) profile_run(graph, given_);
}

VerifiedRun::VerifiedRun(const NgraphIO& io) : is_copied_(append_copies(io.inputs, 0, &given_)) {}

void VerifiedRun::check(const std::string& graph, const NgraphIO& io,
                        const std::vector<Digest>& weights) {
  std::vector<phi::DenseTensor> found;
  if (!is_copied_ || !append_copies(io.outputs, 0, &found) ||
      !append_copies(io.inputs, io.inputs.size() - io.num_states, &found)) {
    given_.clear();
    return skip_check("there is no memory for copies of its inputs and results");
  }
  check_run(graph, std::move(given_), std::move(found), random_, weights);
}

}  // namespace paddle_ngraph
