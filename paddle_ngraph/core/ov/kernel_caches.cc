#include "core/ov/kernel_caches.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <dnnl.hpp>
#include <openvino/op/parameter.hpp>
#include <openvino/op/softmax.hpp>
#include <openvino/op/util/multi_subgraph_base.hpp>
#include <openvino/runtime/properties.hpp>
#include <unistd.h>

namespace paddle_ngraph {

namespace {

// Number of recent sizes whose kernels a function caches. Those of matmuls are large, and quickly
// created: texts of 16 lengths in turn take 6 to 11 % more processor time without any of them, and
// 1,600 texts of random lengths the same time. Sizes that recur often have functions of their own.
constexpr size_t kRecentSizesOfConvolutions = 4;
constexpr size_t kRecentSizesOfMatmuls = 1;

// Number of primitives that the plugin's oneDNN caches. The plugin has caches of its own, one for
// each function, and finds few in this one, which would retain 1,024 (0.7 MB each) otherwise.
constexpr char kCapacity[] = "ONEDNN_PRIMITIVE_CACHE_CAPACITY=8";
constexpr const char* kCapacityNames[] = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY",
                                          "DNNL_PRIMITIVE_CACHE_CAPACITY"};

// A variable in the environment during the lifetime of the object. Threads read the environment
// without a lock at any time, for example to find the time zone: so it is not changed, as setenv()
// would, which frees the array that they read, but replaced by a copy with the variable.
class TemporaryVariable {
 public:
  // `assignment`: the name, "=", and the value; it outlives the process.
  explicit TemporaryVariable(const char* assignment) : before_(environ) {
    size_t count = 0;
    while (before_ != nullptr && before_[count] != nullptr) ++count;
    // Never freed, since another thread may be reading it.
    copy_ = std::make_unique<char*[]>(count + 2).release();
    std::copy_n(before_, count, copy_);
    copy_[count] = const_cast<char*>(assignment);
    copy_[count + 1] = nullptr;
    known_.assign(copy_, copy_ + count + 2);
    environ = copy_;
  }

  ~TemporaryVariable() {
    const bool is_unchanged = environ == copy_ && std::equal(known_.begin(), known_.end(), copy_);
    if (is_unchanged) {
      environ = before_;
      return;
    }
    // Another thread has set a variable meanwhile: its change stays.
    const char* const assignment = known_[known_.size() - 2];
    unsetenv(std::string(assignment, std::strchr(assignment, '=')).c_str());
  }

  TemporaryVariable(const TemporaryVariable&) = delete;
  TemporaryVariable& operator=(const TemporaryVariable&) = delete;

 private:
  char** const before_;
  char** copy_;
  std::vector<char*> known_;  // the elements of the copy
};

// A model for whose only node the plugin creates a primitive when it compiles the model.
std::shared_ptr<ov::Model> softmax_model() {
  const auto parameter = std::make_shared<ov::op::v0::Parameter>(ov::element::f32, ov::Shape{1, 8});
  const auto softmax = std::make_shared<ov::op::v8::Softmax>(parameter, 1);
  return std::make_shared<ov::Model>(ov::OutputVector{softmax}, ov::ParameterVector{parameter});
}

// Collects the descriptions of the nodes of a model that need kernels of their own, by type. Nodes
// with equal descriptions share kernels. Returns whether the model has a body, such as that of a
// loop.
bool collect_kernels(const ov::Model& model, std::map<std::string, std::set<std::string>>* found) {
  bool has_body = false;
  for (const auto& node : model.get_ordered_ops()) {
    has_body |= dynamic_cast<const ov::op::util::MultiSubGraphOp*>(node.get()) != nullptr;
    const std::string type = node->get_type_info().name;
    const bool has_kernel =
        type.find("MatMul") != std::string::npos || type.find("Convolution") != std::string::npos;
    if (!has_kernel) continue;
    std::ostringstream description;
    for (const auto& input : node->inputs()) description << input.get_partial_shape();
    for (const auto& output : node->outputs()) description << output.get_partial_shape();
    (*found)[type].insert(description.str());
  }
  return has_body;
}

}  // namespace

int num_cached_kernels(const ov::Model& model) {
  std::map<std::string, std::set<std::string>> kernels;
  // In a loop, sizes may differ in each iteration, and recur in the next run.
  if (collect_kernels(model, &kernels)) return kMaxCachedKernels;
  size_t wanted = kMinCachedKernels;
  for (const auto& [type, descriptions] : kernels) {
    const bool is_matmul = type.find("MatMul") != std::string::npos;
    const size_t sizes = is_matmul ? kRecentSizesOfMatmuls : kRecentSizesOfConvolutions;
    wanted = std::max(wanted, sizes * descriptions.size());
  }
  return static_cast<int>(std::min<size_t>(wanted, kMaxCachedKernels));
}

void bound_primitive_cache(ov::Core* core) {
  for (const char* name : kCapacityNames) {
    if (std::getenv(name) != nullptr) return;
  }
  // Paddle's oneDNN reads the variable now, if it has not read it before.
  static_cast<void>(dnnl::get_primitive_cache_capacity());
  const TemporaryVariable capacity(kCapacity);
  // Computed on the calling thread, so that no threads start.
  core->compile_model(softmax_model(), "CPU",
                      {ov::num_streams(0), ov::hint::inference_precision(ov::element::f32)});
}

}  // namespace paddle_ngraph
