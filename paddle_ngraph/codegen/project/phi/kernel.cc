#include "phi/kernel.h"

#include <cstring>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <utility>

#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/backends/cpu/cpu_context.h"
#include "paddle/phi/common/memory_utils.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/generator.h"
#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/meta_tensor.h"
#include "paddle/phi/core/platform/cpu_helper.h"

namespace native {

namespace {

using Dense = phi::DenseTensor;
using Input = paddle::small_vector<const phi::TensorBase*>;
using Output = paddle::small_vector<phi::TensorBase*>;
using MetaInput = paddle::small_vector<phi::MetaTensor, phi::kInputSmallVectorSize>;
using MetaOutput = paddle::small_vector<phi::MetaTensor, phi::kOutputSmallVectorSize>;

// A phi::Allocation that uses memory of a tensor of the runtime.
class Memory final : public phi::Allocation {
 public:
  Memory(std::shared_ptr<char> memory, size_t bytes)
      : Allocation(memory.get(), bytes, phi::CPUPlace()), memory_(std::move(memory)) {}

  const std::shared_ptr<char>& memory() const { return memory_; }

 private:
  std::shared_ptr<char> memory_;
};

std::unique_ptr<Memory> allocated(size_t bytes) {
  return std::make_unique<Memory>(allocate(ElementType::u8, {bytes}).memory, bytes);
}

class Allocator final : public phi::Allocator {
 public:
  AllocationPtr Allocate(size_t bytes) override {
    return {allocated(bytes).release(), std::default_delete<phi::Allocation>()};
  }

  bool IsAllocThreadSafe() const override { return true; }
};

std::unique_ptr<phi::CPUContext> new_context() {
  static Allocator allocator;
  auto result = std::make_unique<phi::CPUContext>(phi::CPUPlace());
  result->SetAllocator(&allocator);
  result->SetHostAllocator(&allocator);
  result->SetZeroAllocator(&allocator);
  result->SetHostZeroAllocator(&allocator);
  result->SetGenerator(phi::DefaultCPUGenerator().get());
  result->SetHostGenerator(phi::DefaultCPUGenerator().get());
  return result;
}

// Memory functions to register with PHI in a process without full Paddle, which would register its
// own.
std::unique_ptr<phi::MemoryInterface> memory_interface() {
  auto result = std::make_unique<phi::MemoryInterface>();
  result->alloc = [](const phi::Place&, size_t bytes) {
    return phi::Allocator::AllocationPtr(allocated(bytes).release(),
                                         std::default_delete<phi::Allocation>());
  };
  result->alloc_with_stream = [](const phi::Place& place, size_t bytes, const phi::Stream&) {
    return phi::memory_utils::Alloc(place, bytes);
  };
  result->alloc_shared = [](const phi::Place&, size_t bytes) -> std::shared_ptr<phi::Allocation> {
    return allocated(bytes);
  };
  result->alloc_shared_with_stream = [](const phi::Place& place, size_t bytes, const phi::Stream&) {
    return phi::memory_utils::AllocShared(place, bytes);
  };
  result->in_same_stream = [](const std::shared_ptr<phi::Allocation>&, const phi::Stream&) {
    return true;
  };
  result->allocation_deleter = [](phi::Allocation* memory) {
    std::default_delete<phi::Allocation>()(memory);
  };
  result->copy = [](phi::Place, void* to, phi::Place, const void* from, size_t bytes) {
    std::memcpy(to, from, bytes);
  };
  result->copy_with_stream = [](phi::Place, void* to, phi::Place, const void* from, size_t bytes,
                                void*) { std::memcpy(to, from, bytes); };
  result->device_memory_stat_current_value = [](const std::string&, int) { return int64_t{0}; };
  result->init_devices = [] {};
  result->emplace_device_contexts =
      [](std::map<phi::Place, std::shared_future<std::unique_ptr<phi::DeviceContext>>>* contexts,
         const std::vector<phi::Place>& places, bool, int, bool) {
        for (const auto& place : places) {
          std::promise<std::unique_ptr<phi::DeviceContext>> context;
          context.set_value(new_context());
          contexts->emplace(place, context.get_future().share());
        }
      };
  return result;
}

// The context of all kernel calls, created once. Initializes PHI, unless this process has imported
// Paddle, which has done so.
phi::CPUContext* context() {
  static const std::unique_ptr<phi::CPUContext> result = [] {
    if (!phi::DeviceContextPool::IsInitialized()) {
      phi::MemoryUtils::Instance().Init(memory_interface());
      phi::DeviceContextPool::Init({phi::CPUPlace()});
      // A kernel computes on one thread, as in Paddle's executor.
      paddle::platform::SetNumThreads(1);
    }
    return new_context();
  }();
  return result.get();
}

Dense wrapped(const Tensor& tensor) {
  const std::vector<int64_t> sizes(tensor.shape.begin(), tensor.shape.end());
  const auto dtype = phi::StringToDataType(name_of(tensor.type));
  return {std::make_shared<Memory>(tensor.memory, tensor.bytes()),
          phi::DenseTensorMeta(dtype, common::make_ddim(sizes))};
}

Tensor copied(const Tensor& tensor) {
  Tensor result = allocate(tensor.type, tensor.shape);
  std::memcpy(result.memory.get(), tensor.memory.get(), tensor.bytes());
  return result;
}

Tensor unwrapped(const Dense& tensor) {
  if (!tensor.meta().is_contiguous()) throw Error("a result is not in C order");
  const auto sizes = common::vectorize(tensor.dims());
  const ElementType type = type_named(phi::DataTypeToString(tensor.dtype()));
  const Shape shape(sizes.begin(), sizes.end());
  if (tensor.numel() == 0) return allocate(type, shape);
  // The result shares the reference count of the memory's owner: by this count the runtime decides
  // whether memory is shared.
  const auto* memory = dynamic_cast<const Memory*>(tensor.Holder().get());
  const size_t offset = tensor.meta().offset;
  if (memory != nullptr) {
    return {type, shape, {memory->memory(), memory->memory().get() + offset}};
  }
  if (!tensor.initialized()) throw Error("a result has no memory");
  const auto result = allocate(type, shape);
  std::memcpy(result.memory.get(), static_cast<const char*>(tensor.Holder()->ptr()) + offset,
              result.bytes());
  return result;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// The operands and results of a kernel call, as phi::DenseTensor.
struct Call {
  std::vector<std::deque<Dense>> operands;
  // The results that have memory of their own. `results` points to these, and to operands that
  // other results overwrite.
  std::vector<std::deque<Dense>> own;
  std::vector<std::vector<Dense*>> results;
};

Call prepared(const Operands& operands, const std::vector<Result>& results) {
  std::vector<bool> is_overwritten(operands.size());
  for (const auto& result : results) {
    if (result.overwrites != Result::kNone) is_overwritten.at(result.overwrites) = true;
  }
  Call call;
  for (size_t i = 0; i < operands.size(); ++i) {
    auto& members = call.operands.emplace_back();
    for (const auto& each : operands[i]) {
      members.push_back(wrapped(is_overwritten[i] ? copied(each) : each));
    }
  }
  for (const auto& result : results) {
    const bool is_new = result.overwrites == Result::kNone;
    call.own.emplace_back(is_new ? result.size : 0);
    auto& members = is_new ? call.own.back() : call.operands[result.overwrites];
    auto& pointers = call.results.emplace_back();
    for (auto& each : members) pointers.push_back(&each);
  }
  return call;
}

phi::Attribute from_operand(const std::deque<Dense>& members) {
  if (members.size() == 1) return phi::TensorRef(&members.front());
  std::vector<phi::TensorRef> references;
  for (const auto& each : members) references.emplace_back(&each);
  return references;
}

template <typename Context>
void add_attributes(const Arguments& arguments, const Call& call, Context* context) {
  for (const auto& attribute : arguments.attributes) {
    if (const auto* operand = std::get_if<FromOperand>(&attribute)) {
      context->EmplaceBackAttr(from_operand(call.operands.at(operand->number)));
    } else {
      context->EmplaceBackAttr(std::get<phi::Attribute>(attribute));
    }
  }
}

}  // namespace

Kernel::Kernel(const std::string& name, phi::DataType dtype, phi::InferMetaFn infer_meta,
               std::vector<size_t> lists, Arguments meta_arguments, Arguments arguments,
               std::vector<Result> results)
    : name_(name),
      infer_meta_(infer_meta),
      meta_arguments_(std::move(meta_arguments)),
      arguments_(std::move(arguments)),
      results_(std::move(results)) {
  for (size_t number : lists) {
    if (number >= is_list_.size()) is_list_.resize(number + 1);
    is_list_[number] = true;
  }
  try {
    const phi::KernelKey key(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, dtype);
    kernel_ = &phi::KernelFactory::Instance().SelectKernelOrThrowError(name, key).kernel;
  } catch (const std::exception& error) {
    throw Error(concat("this release of Paddle has no kernel ", name,
                       " for a CPU: ", first_line(error.what())));
  }
}

Tensors Kernel::operator()(const Operands& operands) const {
  Call call = prepared(operands, results_);
  const auto is_list = [&](size_t operand) {
    return operand < is_list_.size() && is_list_[operand];
  };
  phi::InferMetaContext meta({true, false});
  phi::KernelContext kernel(context());
  for (size_t number : meta_arguments_.inputs) {
    const auto& members = call.operands.at(number);
    MetaInput list;
    for (const auto& each : members) list.emplace_back(each);
    if (list.empty()) list.emplace_back();
    if (is_list(number)) {
      meta.EmplaceBackInputs(list);
    } else {
      meta.EmplaceBackInput(list.front());
    }
  }
  for (size_t number : arguments_.inputs) {
    const auto& members = call.operands.at(number);
    Input list;
    for (const auto& each : members) list.push_back(&each);
    if (list.empty()) list.push_back(nullptr);
    if (is_list(number)) {
      kernel.EmplaceBackInputs(list);
    } else {
      kernel.EmplaceBackInput(list.front());
    }
  }
  for (size_t i = 0; i < results_.size(); ++i) {
    MetaOutput metas;
    Output places;
    for (Dense* each : call.results[i]) {
      metas.emplace_back(each);
      places.push_back(each);
    }
    if (metas.empty() && !results_[i].is_list) {
      metas.emplace_back();
      places.push_back(nullptr);
    }
    if (results_[i].is_list) {
      meta.EmplaceBackOutputs(metas);
      kernel.EmplaceBackOutputs(places);
    } else {
      meta.EmplaceBackOutput(metas.front());
      kernel.EmplaceBackOutput(places.front());
    }
  }
  add_attributes(meta_arguments_, call, &meta);
  add_attributes(arguments_, call, &kernel);
  Tensors result;
  try {
    infer_meta_(&meta);
    (*kernel_)(&kernel);
    for (const auto& members : call.results) {
      for (const Dense* each : members) result.push_back(unwrapped(*each));
    }
  } catch (const std::exception& error) {
    throw Error(concat("Paddle's kernel ", name_, ": ", first_line(error.what())));
  }
  return result;
}

}  // namespace native
