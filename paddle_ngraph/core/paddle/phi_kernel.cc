#include "core/paddle/phi_kernel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "paddle/fluid/pir/dialect/operator/interface/infermeta.h"
#include "paddle/fluid/pir/dialect/operator/interface/op_yaml_info.h"
#include "paddle/fluid/pir/dialect/operator/utils/op_yaml_info_parser.h"
#include "paddle/phi/backends/context_pool.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/kernel_context.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/phi/core/meta_tensor.h"
#include "paddle/pir/include/core/ir_context.h"
#include "paddle/pir/include/core/op_info.h"
#include "paddle/pir/include/core/op_trait.h"

#include "core/common/error.h"
#include "core/engine/events.h"
#include "core/paddle/flags.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

using namespace std::chrono_literals;  // NOLINT
using paddle::dialect::OpYamlInfoParser;
using phi::DataType;
using phi::DenseTensor;

constexpr char kTensor[] = "paddle::dialect::DenseTensorType";
constexpr char kList[] = "pir::VectorType<paddle::dialect::DenseTensorType>";
// More tensors than any operator has, and fewer than memory.
constexpr size_t kMaxTensors = 1 << 16;

// An operand or a result: a tensor, or a list of tensors; an absent one has none.
struct Slot {
  bool is_list;
  size_t size;
};

// The number of rows of a result: one that only a run knows, that Paddle's shape inference knows,
// or that of the first operand.
constexpr int64_t kUnknown = -1, kInferred = -2, kOfFirst = -3;

// The number of rows of a result, from its use in a description.
int64_t rows_of(const std::string& use) {
  if (use == "unused" || use == "sized") return kInferred;
  if (use == "unsized") return kUnknown;
  if (use == "as_first") return kOfFirst;
  if (use.rfind("open", 0) == 0) return kUnknown;
  const int64_t rows = std::strtoll(use.c_str(), nullptr, 10);
  if (rows < 1) throw NgraphError(concat("a result of a kernel is ", use));
  return rows;
}

// The rank of a result all of whose sizes only a run knows, from its use; -1 for others.
int64_t open_rank_of(const std::string& use) {
  if (use.rfind("open", 0) != 0) return -1;
  const int64_t rank = std::strtoll(use.c_str() + 4, nullptr, 10);
  if (rank < 1 || rank > common::DDim::kMaxRank) {
    throw NgraphError(concat("a result of a kernel is ", use));
  }
  return rank;
}

// A tensor of a result that the function reads.
struct Result {
  size_t index;
  int64_t num_rows;
  int64_t open_rank;
  DataType dtype;
  bool is_bytes;  // whether the function has it as bytes
};

struct KernelArguments {
  std::vector<size_t> operands;  // those that are read as tensors, by index
  std::vector<phi::Attribute> attributes;
};

// The words of a description.
class DescriptionReader {
 public:
  explicit DescriptionReader(const char* text) : next_(text) {}

  std::string word() {
    const char* const begin = next_;
    while (*next_ != '\0' && *next_ != ' ') ++next_;
    std::string found(begin, next_);
    if (found.empty()) throw NgraphError("the description of a kernel ends early");
    if (*next_ == ' ') ++next_;
    return found;
  }

  int64_t integer() { return std::strtoll(word().c_str(), nullptr, 10); }
  size_t size() { return static_cast<size_t>(integer()); }
  double number() { return std::strtod(word().c_str(), nullptr); }
  bool truth() { return integer() != 0; }
  DataType dtype() { return phi::StringToDataType(word()); }

  std::string text() {
    char* begin = nullptr;
    const auto length = std::strtoull(next_, &begin, 10);
    if (*begin != ':' || std::strlen(begin + 1) < length) {
      throw NgraphError("a text in the description of a kernel ends early");
    }
    const std::string found(begin + 1, length);
    next_ = begin + 1 + length;
    if (*next_ == ' ') ++next_;
    return found;
  }

  template <typename Read>
  auto list(const Read& read) {
    const size_t count = size();
    if (count > std::strlen(next_)) {
      throw NgraphError("a list in the description of a kernel ends early");
    }
    std::vector<decltype(read())> found(count);
    for (auto&& item : found) item = read();
    return found;
  }

 private:
  const char* next_;
};

phi::Scalar scalar_of(DescriptionReader* words) {
  const auto dtype = words->dtype();
  switch (dtype) {
    case DataType::BOOL:
      return phi::Scalar(words->truth());
    case DataType::INT32:
      return phi::Scalar(static_cast<int32_t>(words->integer()));
    case DataType::INT64:
      return phi::Scalar(words->integer());
    case DataType::FLOAT32:
      return phi::Scalar(static_cast<float>(words->number()));
    default:
      return phi::Scalar(words->number());
  }
}

phi::Attribute attribute_of(DescriptionReader* words) {
  const auto type = words->word();
  const auto int32 = [&] { return static_cast<int>(words->integer()); };
  const auto int64 = [&] { return words->integer(); };
  const auto float32 = [&] { return static_cast<float>(words->number()); };
  const auto float64 = [&] { return words->number(); };
  if (type == "bool") return words->truth();
  if (type == "int32") return int32();
  if (type == "int64") return int64();
  if (type == "float32") return float32();
  if (type == "float64") return float64();
  if (type == "text") return words->text();
  if (type == "int32s") return words->list(int32);
  if (type == "int64s") return words->list(int64);
  if (type == "float32s") return words->list(float32);
  if (type == "float64s") return words->list(float64);
  if (type == "texts") return words->list([&] { return words->text(); });
  if (type == "scalar") return scalar_of(words);
  if (type == "scalars") return words->list([&] { return scalar_of(words); });
  if (type == "ints") return phi::IntArray(words->list(int64));
  if (type == "dtype") return words->dtype();
  if (type == "place") return phi::Place(phi::CPUPlace());
  throw NgraphError(concat("an attribute of a kernel has the type ", type));
}

KernelArguments arguments_of(DescriptionReader* words) {
  KernelArguments found;
  found.operands = words->list([&] { return words->size(); });
  found.attributes = words->list([&] { return attribute_of(words); });
  return found;
}

// Whether loops in functions sample by the kernel of an operator (conversion/kernel_calls.py).
bool is_sampler(const std::string& name) { return name == "pd_op.multinomial"; }

bool names_mode(const std::string& attribute) {
  static const std::set<std::string> modes = mode_attributes();
  return modes.count(attribute) > 0;
}

// The reason why no function calls the kernel of an operator, whatever its arguments; empty if
// there is none.
std::string reason_against(const std::string& name, const OpYamlInfoParser& parsed) {
  static const std::map<std::string, std::string> impure = impure_operators();
  if (is_sampler(name)) return {};
  if (name.rfind("pd_op.", 0) != 0) return "is no operator on dense tensors";
  if (name.back() == '_') return "overwrites an operand";
  if (const auto found = impure.find(name); found != impure.end()) return found->second;
  const auto info = pir::IrContext::Instance()->GetRegisteredOpInfo(name);
  if (info.HasTrait<pir::SideEffectTrait>()) return "has side effects";
  for (const auto& attribute : parsed.AttributeNames()) {
    const bool is_text = parsed.AttrTypeName(attribute).find("StrAttribute") != std::string::npos;
    if (is_text && !names_mode(attribute)) return "has an attribute that may name a file";
    if (attribute == "ring_id") return "communicates";
  }
  return {};
}

// Memory of the function, which it keeps as long as the kernel runs.
class BorrowedAllocation final : public phi::Allocation {
 public:
  BorrowedAllocation() : Allocation(nullptr, 0, phi::CPUPlace()) {}

  void set(void* data, size_t bytes) {
    ptr_ = data;
    size_ = bytes;
  }
};

// The tensors of one call, with the contexts that refer to them.
struct Call {
  Call(size_t num_inputs, size_t num_results)
      : inputs(num_inputs),
        results(num_results),
        memory(num_inputs + num_results),
        wide(num_inputs) {
    for (auto& each : memory) each = std::make_shared<BorrowedAllocation>();
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::vector<DenseTensor> inputs, results;
  std::vector<std::shared_ptr<BorrowedAllocation>> memory;  // of inputs, then of results
  std::vector<std::vector<int64_t>> wide;                   // copies of inputs in 64 bits
  phi::InferMetaContext meta{phi::MetaConfig(/*is_runtime=*/true, false)};
  phi::KernelContext kernel;
};

ElementType element_of(DataType dtype) {
  const auto& name = element_name(dtype);
  for (const auto& row : kElementTypes) {
    if (name == row.ngraph) return row.element;
  }
  throw NgraphError(concat("a kernel makes a tensor of ", name));
}

// Appends an operand or result to a context: the tensors of a slot begin at `first`.
template <typename Member, typename List, typename One, typename Many>
void append(const Slot& slot, DenseTensor* first, const One& one, const Many& many) {
  List members;
  for (size_t i = 0; i < slot.size; ++i) members.push_back(Member(first + i));
  if (members.empty()) members.push_back(Member(static_cast<DenseTensor*>(nullptr)));
  if (slot.is_list) {
    many(std::move(members));
  } else {
    one(members.front());
  }
}

// The kernel for the CPU among those of one name; nullptr if there is none.
const phi::Kernel* cpu_kernel_in(const phi::KernelKeyMap& variants) {
  for (const auto& [key, kernel] : variants) {
    if (key.backend() == phi::Backend::CPU) return &kernel;
  }
  return nullptr;
}

// The kinds of tensors other than dense ones that a kernel reads or makes; empty if there are none.
std::string other_tensors_of(const phi::KernelArgsDef& taken) {
  std::set<std::string> kinds;
  const auto add = [&](const auto& tensors) {
    for (const auto& each : tensors) {
      const std::string type = each.type_index.name();
      for (const char* kind :
           {"SelectedRows", "Sparse", "StringTensor", "TensorArray", "ExtendedTensor"}) {
        if (type.find(kind) != std::string::npos) kinds.insert(kind);
      }
    }
  };
  add(taken.input_defs());
  add(taken.output_defs());
  std::string found;
  for (const auto& kind : kinds) found += (found.empty() ? "" : ", ") + kind;
  return found;
}

// Records the memory that kernels read and write, for tests.
class KernelRecorder {
 public:
  static KernelRecorder& instance() {
    static KernelRecorder recorder;
    return recorder;
  }

  bool is_recording() const { return is_recording_.load(std::memory_order_relaxed); }

  void add(KernelMemory memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    recorded_.push_back(std::move(memory));
  }

  // Returns what was recorded so far, and forgets it.
  std::vector<KernelMemory> restart(bool recording) {
    std::lock_guard<std::mutex> lock(mutex_);
    is_recording_ = recording;
    return std::exchange(recorded_, {});
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> is_recording_{false};
  std::vector<KernelMemory> recorded_;
};

class CallableKernel final : public PaddleKernel {
 public:
  explicit CallableKernel(const char* description) {
    DescriptionReader words(description);
    operator_ = words.word();
    // Also for functions on disk, and for graphs of saved programs.
    if (!FLAGS_ngraph_kernel_calls && !is_sampler(operator_)) {
      throw NgraphError("FLAGS_ngraph_kernel_calls is off");
    }
    name_ = words.word();
    const auto dtype = words.dtype();
    const auto slot = [&] {
      const bool is_list = words.truth();
      return Slot{is_list, words.size()};
    };
    operands_ = words.list(slot);
    dtypes_ = words.list([&] { return words.dtype(); });
    std::vector<bool> is_used;
    std::vector<int64_t> rows, open_ranks;
    results_ = words.list([&] {
      const Slot found = slot();
      const auto use = words.word();
      is_used.push_back(use != "unused");
      rows.push_back(rows_of(use));
      open_ranks.push_back(open_rank_of(use));
      return found;
    });
    const auto used = words.list([&] {
      const auto found = words.dtype();
      return std::make_pair(found, words.truth());
    });
    meta_arguments_ = arguments_of(&words);
    kernel_arguments_ = arguments_of(&words);
    require_operator();
    find(dtype);
    // The program pass shows that no operator reads it.
    has_unread_lod_ =
        operator_ == "pd_op.distribute_fpn_proposals" || operator_ == "pd_op.collect_fpn_proposals";
    first_input_ = firsts(operands_);
    first_result_ = firsts(results_);
    require(dtypes_.size() == first_input_.back(), "has another number of dtypes than of tensors");
    for (size_t i = 0; i < results_.size(); ++i) {
      for (size_t n = first_result_[i]; n < first_result_[i + 1] && is_used[i]; ++n) {
        require(used_.size() < used.size(), "has fewer dtypes than results");
        const auto& [result_dtype, is_bytes] = used[used_.size()];
        require(is_bytes ? phi::SizeOf(result_dtype) > 1 : !needs_bytes(result_dtype),
                "makes a tensor that is passed in another way");
        used_.push_back({n, rows[i], open_ranks[i], result_dtype, is_bytes});
      }
    }
  }

  ~CallableKernel() override {
    for (auto& idle : idle_) std::unique_ptr<Call>(idle.load()).reset();
  }

  std::vector<KernelTensor> infer(const std::vector<KernelTensor>& inputs) const override {
    for (size_t i = 0; i < inputs.size() && i < dtypes_.size(); ++i) {
      require(is_passed_as(dtypes_[i], inputs[i]), "gets another dtype");
    }
    Call call(first_input_.back(), first_result_.back());
    set_shapes(inputs, &call);
    call.meta.SetMetaConfig({/*is_runtime=*/false, false});
    add_meta_arguments(&call);
    guarded([&] { infer_meta_(&call.meta); });
    std::vector<KernelTensor> found;
    for (const auto& result : used_) {
      require_declared(result, call.results[result.index].dtype());
      found.push_back(type_of(result, call.results[result.index]));
      if (result.num_rows != kOfFirst) continue;
      require(!inputs.empty() && !inputs.front().shape.empty() && !found.back().shape.empty(),
              "has no rows");
      found.back().shape.front() = inputs.front().shape.front();
    }
    return found;
  }

  void run(const std::vector<KernelTensor>& inputs, const std::vector<KernelTensor>& results,
           const Allocate& allocate) const override {
    const auto start = std::chrono::steady_clock::now();
    std::unique_ptr<Call> call = take();
    set_shapes(inputs, call.get());
    set_inputs(inputs, call.get());
    for (auto& result : call->results) result = DenseTensor();
    guarded([&] {
      infer_meta_(&call->meta);
      set_results(results, call.get());
      (*kernel_)(&call->kernel);
      if (KernelRecorder::instance().is_recording()) record(*call);
      for (size_t i = 0; i < results.size(); ++i) {
        return_result(results[i], call->results[used_[i].index], used_[i],
                      [&](const std::vector<int64_t>& shape) { return allocate(i, shape); });
      }
    });
    give(std::move(call));
    add(Quantity::kKernelCalls);
    add(Quantity::kKernelCallNs, (std::chrono::steady_clock::now() - start) / 1ns);
  }

 private:
  void require(bool condition, const char* reason) const {
    if (condition) return;
    throw NgraphError(concat("Paddle's kernel of ", operator_, ' ', reason),
                      ErrorCode::kKernelFailed);
  }

  // Throws if Paddle's shape inference gives a result another dtype than the program declares, as
  // of ProgramDesc programs. It does not know all, and is wrong about two operators
  // (_RESULT_DTYPES in conversion/kernel_calls.py).
  void require_declared(const Result& result, DataType inferred) const {
    if (inferred == result.dtype || inferred == DataType::UNDEFINED) return;
    const bool is_wrong =
        operator_ == "pd_op.viterbi_decode" || operator_ == "pd_op.generate_proposals";
    require(is_wrong, "makes another dtype than the program declares");
  }

  static std::vector<size_t> firsts(const std::vector<Slot>& slots) {
    std::vector<size_t> found{0};
    for (const auto& slot : slots) found.push_back(found.back() + slot.size);
    return found;
  }

  // Throws unless Paddle declares the operator as the description does. The description may come
  // from a file; kernels read arguments by position, and some write files.
  void require_operator() const {
    const auto info = pir::IrContext::Instance()->GetRegisteredOpInfo(operator_);
    using Interface = paddle::dialect::OpYamlInfoInterface;
    const auto* interface = info ? info.GetInterfaceImpl<Interface>() : nullptr;
    if (interface == nullptr) throw NgraphError(concat("Paddle has no operator ", operator_));
    const auto declaration = interface->get_op_info_(operator_);
    const OpYamlInfoParser parsed(declaration);
    require(name_ == parsed.OpRuntimeInfo().kernel_func, "has another name");
    const std::string impurity = reason_against(operator_, parsed);
    require(impurity.empty(), impurity.c_str());
    require(operands_.size() == parsed.InputNames().size() &&
                results_.size() == parsed.OutputNames().size(),
            "takes other operands");
    require_arguments(parsed, std::get<0>(declaration), meta_arguments_, false);
    require_arguments(parsed, std::get<0>(declaration), kernel_arguments_, true);
    for (size_t i = 0; i < results_.size(); ++i) require_slot(parsed.GetOutputType(i), results_[i]);
  }

  template <typename Inputs>
  void require_arguments(const OpYamlInfoParser& parsed, const Inputs& inputs,
                         const KernelArguments& given, bool is_kernel) const {
    const auto& names = parsed.TensorParams(is_kernel);
    require(given.operands.size() == names.size() &&
                given.attributes.size() == parsed.AttrParams(is_kernel).size(),
            "takes other arguments");
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t operand = parsed.InputName2Id().at(names[i]);
      require(given.operands[i] == operand, "takes its operands in another order");
      require_slot(parsed.GetInputType(operand), operands_[operand]);
      require(operands_[operand].size > 0 || inputs[operand].optional, "lacks an operand");
    }
  }

  void require_slot(const std::string& type, const Slot& slot) const {
    require(slot.is_list ? type == kList : type == kTensor && slot.size < 2,
            "takes or makes no such tensors");
    require(slot.size < kMaxTensors, "takes or makes no such number of tensors");
  }

  void find(DataType dtype) {
    const auto info = pir::IrContext::Instance()->GetRegisteredOpInfo(operator_);
    using Interface = paddle::dialect::InferMetaInterface;
    const auto* interface = info ? info.GetInterfaceImpl<Interface>() : nullptr;
    if (interface == nullptr) throw NgraphError(concat("Paddle has no operator ", operator_));
    infer_meta_ = interface->infer_meta_;
    const phi::KernelKey key(phi::Backend::CPU, phi::DataLayout::ALL_LAYOUT, dtype);
    guarded([&] {
      kernel_ = &phi::KernelFactory::Instance().SelectKernelOrThrowError(name_, key).kernel;
    });
    // The kernel reads its arguments by position, without checks.
    const auto& taken = kernel_->args_def();
    require(taken.input_defs().size() == kernel_arguments_.operands.size() &&
                taken.output_defs().size() == results_.size() &&
                taken.attribute_defs().size() <= kernel_arguments_.attributes.size(),
            "takes other arguments");
  }

  // Calls function(). Throws NgraphError with the reason of an error of Paddle.
  template <typename Function>
  void guarded(const Function& function) const {
    try {
      function();
    } catch (const NgraphError&) {
      throw;
    } catch (const std::exception& error) {
      throw NgraphError(concat("Paddle's kernel of ", operator_, ": ", error.what()),
                        ErrorCode::kKernelFailed);
    }
  }

  void set_shapes(const std::vector<KernelTensor>& inputs, Call* call) const {
    require(inputs.size() == call->inputs.size(), "gets another number of tensors");
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto& tensor = call->inputs[i];
      const auto& dims = tensor.dims();
      const int64_t* const shape = inputs[i].shape.data();
      const size_t rank = inputs[i].shape.size() - (has_bytes(inputs[i], dtypes_[i]) ? 1 : 0);
      const bool is_set = tensor.dtype() == dtypes_[i] && dims.size() == static_cast<int>(rank) &&
                          std::equal(shape, shape + rank, dims.Get());
      if (is_set) continue;
      if (std::any_of(shape, shape + rank, [](int64_t size) { return size < 0; })) {
        // For shape inference: a tensor with data may not have such a shape.
        tensor.set_type(dtypes_[i]);
        tensor.Resize(common::DDim(shape, static_cast<int>(rank)));
        continue;
      }
      // Of the overloads, that for a constant accepts a tensor that has a shape already.
      const phi::DenseTensorMeta meta(dtypes_[i], common::DDim(shape, static_cast<int>(rank)));
      tensor.set_meta(meta);
    }
  }

  void record(const Call& call) const {
    KernelMemory memory{operator_, {}, {}};
    for (const auto& each : call.inputs) {
      memory.inputs.push_back(reinterpret_cast<uintptr_t>(each.data()));
    }
    for (const auto& each : used_) {
      const auto& result = call.results[each.index];
      memory.results.push_back(result.initialized() ? reinterpret_cast<uintptr_t>(result.data())
                                                    : 0);
    }
    KernelRecorder::instance().add(std::move(memory));
  }

  void set_inputs(const std::vector<KernelTensor>& inputs, Call* call) const {
    // The address of empty tensors: Paddle takes one without an address for one without memory.
    static char nothing[64];
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto count = static_cast<size_t>(call->inputs[i].numel());
      void* data = inputs[i].data == nullptr ? nothing : inputs[i].data;
      if (dtypes_[i] == DataType::INT64 && inputs[i].element == ElementType::i32) {
        const auto* narrow = static_cast<const int32_t*>(data);
        call->wide[i].assign(narrow, narrow + count);
        data = call->wide[i].data();
      }
      call->memory[i]->set(data, count * phi::SizeOf(dtypes_[i]));
    }
  }

  // Gives results their memory in the function. The kernel allocates memory for others: for
  // results in 64 bits, and for those whose size it determines.
  void set_results(const std::vector<KernelTensor>& results, Call* call) const {
    require(results.size() == used_.size(), "makes another number of tensors");
    for (size_t i = 0; i < results.size(); ++i) {
      if (is_open(results[i].shape) || is_narrowed(used_[i])) continue;
      auto& tensor = call->results[used_[i].index];
      const auto& memory = call->memory[call->inputs.size() + used_[i].index];
      size_t bytes = used_[i].is_bytes ? 1 : phi::SizeOf(used_[i].dtype);
      for (const int64_t size : results[i].shape) bytes *= static_cast<size_t>(size);
      // A kernel that makes more than the function expects allocates memory of its own.
      memory->set(results[i].data, bytes);
      tensor.ResetHolder(memory);
    }
  }

  // Whether the plugin would compute tensors of a dtype in another one, or has none: they are
  // passed as bytes only.
  static bool needs_bytes(DataType dtype) {
    return dtype == DataType::FLOAT64 || dtype == DataType::COMPLEX64 ||
           dtype == DataType::COMPLEX128;
  }

  // Whether a tensor of `dtype` is passed as bytes.
  static bool has_bytes(const KernelTensor& tensor, DataType dtype) {
    return tensor.element == ElementType::u8 && phi::SizeOf(dtype) > 1;
  }

  // The plugin has 64-bit integers in 32 bits, and booleans in bytes.
  static bool is_passed_as(DataType dtype, const KernelTensor& tensor) {
    if (has_bytes(tensor, dtype)) {
      const auto bytes = static_cast<int64_t>(phi::SizeOf(dtype));
      return !tensor.shape.empty() && tensor.shape.back() == bytes;
    }
    if (needs_bytes(dtype)) return false;
    if (dtype == DataType::INT64 && tensor.element == ElementType::i32) return true;
    if (dtype == DataType::BOOL && tensor.element == ElementType::u8) return true;
    return element_of(dtype) == tensor.element;
  }

  // Whether the kernel's 64-bit integers are copied to 32 bits.
  static bool is_narrowed(const Result& result) {
    return result.dtype == DataType::INT64 && !result.is_bytes;
  }

  // The shape of a tensor in the function.
  static std::vector<int64_t> shape_of(const DenseTensor& tensor, const Result& declared) {
    auto shape = common::vectorize<int64_t>(tensor.dims());
    if (declared.is_bytes) shape.push_back(static_cast<int64_t>(phi::SizeOf(declared.dtype)));
    return shape;
  }

  static bool is_open(const std::vector<int64_t>& shape) {
    return std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; });
  }

  template <typename Resize>
  void return_result(const KernelTensor& result, const DenseTensor& tensor, const Result& declared,
                     const Resize& resize) const {
    const DataType dtype = declared.dtype;
    require(tensor.lod().empty() || has_unread_lod_, "makes a LoD");
    require(tensor.initialized() || tensor.numel() == 0, "makes a result without memory");
    if (tensor.dtype() != dtype) {
      throw NgraphError(
          concat("Paddle's kernel of ", operator_, " makes a result of another dtype: ",
                 phi::DataTypeToString(tensor.dtype()), ", not ", phi::DataTypeToString(dtype)),
          ErrorCode::kKernelFailed);
    }
    const auto shape = shape_of(tensor, declared);
    void* target = result.data;
    if (is_open(result.shape)) {
      require(shape.size() == result.shape.size(), "makes a result of another rank");
      target = resize(shape);
    } else {
      require(shape == result.shape, "makes a result of another shape than Paddle infers");
    }
    if (tensor.numel() == 0 || tensor.data() == target) return;
    add(Quantity::kKernelResultsCopied);
    require(tensor.meta().is_contiguous(), "makes a result that is not in row-major order");
    const auto count = static_cast<size_t>(tensor.numel());
    if (is_narrowed(declared)) {
      narrow(static_cast<const int64_t*>(tensor.data()), count, static_cast<int32_t*>(target));
    } else {
      std::memcpy(target, tensor.data(), count * phi::SizeOf(dtype));
    }
  }

  void narrow(const int64_t* from, size_t count, int32_t* to) const {
    for (size_t i = 0; i < count; ++i) {
      to[i] = static_cast<int32_t>(from[i]);
      if (to[i] == from[i]) continue;
      throw NgraphError(concat("Paddle's kernel of ", operator_,
                               " makes integers that need 64 bits, the engine has 32"),
                        ErrorCode::kInt32Overflow);
    }
  }

  // Paddle declares a size of 0 where its shape inference knows none, too.
  static KernelTensor type_of(const Result& result, const DenseTensor& tensor) {
    KernelTensor found{element_of(result.dtype), common::vectorize<int64_t>(tensor.dims())};
    if (is_narrowed(result)) found.element = ElementType::i32;
    if (result.open_rank > 0) found.shape.assign(static_cast<size_t>(result.open_rank), -1);
    for (auto& size : found.shape) {
      if (size <= 0) size = -1;
    }
    if (result.num_rows > kInferred && !found.shape.empty()) found.shape.front() = result.num_rows;
    if (result.is_bytes) {
      found.element = ElementType::u8;
      found.shape.push_back(static_cast<int64_t>(phi::SizeOf(result.dtype)));
    }
    return found;
  }

  void add_meta_arguments(Call* call) const {
    using Members = paddle::small_vector<phi::MetaTensor, phi::kInputSmallVectorSize>;
    using Results = paddle::small_vector<phi::MetaTensor, phi::kOutputSmallVectorSize>;
    auto& context = call->meta;
    for (const size_t operand : meta_arguments_.operands) {
      append<phi::MetaTensor, Members>(
          operands_[operand], call->inputs.data() + first_input_[operand],
          [&](auto& one) { context.EmplaceBackInput(one); },
          [&](auto all) { context.EmplaceBackInputs(std::move(all)); });
    }
    for (size_t result = 0; result < results_.size(); ++result) {
      append<phi::MetaTensor, Results>(
          results_[result], call->results.data() + first_result_[result],
          [&](auto& one) { context.EmplaceBackOutput(one); },
          [&](auto all) { context.EmplaceBackOutputs(std::move(all)); });
    }
    for (const auto& attribute : meta_arguments_.attributes) context.EmplaceBackAttr(attribute);
  }

  void add_kernel_arguments(Call* call) const {
    using Input = const phi::TensorBase*;
    using Output = phi::TensorBase*;
    auto& context = call->kernel;
    context.SetDeviceContext(phi::DeviceContextPool::Instance().Get(phi::CPUPlace()));
    for (const size_t operand : kernel_arguments_.operands) {
      append<Input, paddle::small_vector<Input>>(
          operands_[operand], call->inputs.data() + first_input_[operand],
          [&](auto& one) { context.EmplaceBackInput(one); },
          [&](auto all) { context.EmplaceBackInputs(std::move(all)); });
    }
    for (size_t result = 0; result < results_.size(); ++result) {
      append<Output, paddle::small_vector<Output>>(
          results_[result], call->results.data() + first_result_[result],
          [&](auto& one) { context.EmplaceBackOutput(one); },
          [&](auto all) { context.EmplaceBackOutputs(std::move(all)); });
    }
    for (const auto& attribute : kernel_arguments_.attributes) context.EmplaceBackAttr(attribute);
  }

  std::unique_ptr<Call> take() const {
    for (auto& idle : idle_) {
      if (Call* const call = idle.exchange(nullptr)) return std::unique_ptr<Call>(call);
    }
    auto call = std::make_unique<Call>(first_input_.back(), first_result_.back());
    for (size_t i = 0; i < call->inputs.size(); ++i) {
      call->inputs[i] = DenseTensor(call->memory[i], {dtypes_[i], common::make_ddim({0})});
    }
    add_meta_arguments(call.get());
    add_kernel_arguments(call.get());
    return call;
  }

  // Keeps the tensors of a call for the next one, without the memory of results that the kernel has
  // allocated.
  void give(std::unique_ptr<Call> call) const {
    for (auto& result : call->results) result.clear();
    for (auto& idle : idle_) {
      Call* none = nullptr;
      if (!idle.compare_exchange_strong(none, call.get())) continue;
      call.release();
      return;
    }
  }

  std::string operator_, name_;
  bool has_unread_lod_ = false;
  void (*infer_meta_)(phi::InferMetaContext*) = nullptr;
  const phi::Kernel* kernel_ = nullptr;
  std::vector<Slot> operands_, results_;
  std::vector<Result> used_;
  std::vector<DataType> dtypes_;  // of the tensors of all operands
  // For each operand, and each result, the index of its first tensor; then the number of tensors.
  std::vector<size_t> first_input_, first_result_;
  KernelArguments meta_arguments_, kernel_arguments_;
  // The tensors of calls that no run uses. Atomics, since a fork would copy a locked mutex.
  mutable std::array<std::atomic<Call*>, 16> idle_{};
};

}  // namespace

std::map<std::string, std::string> impure_operators() {
  std::map<std::string, std::string> reasons;
  const auto add = [&](const char* reason, std::initializer_list<const char*> names) {
    for (const char* name : names) reasons.emplace(concat("pd_op.", name), reason);
  };
  add("reads or makes a LoD", {"add_position_encoding",
                               "add_position_encoding_grad",
                               "beam_search",
                               "beam_search_decode",
                               "box_clip",
                               "crf_decoding",
                               "ctc_align",
                               "cvm",
                               "cvm_grad",
                               "edit_distance",
                               "fused_seqpool_cvm",
                               "fused_seqpool_cvm_grad",
                               "fusion_seqconv_eltadd_relu",
                               "fusion_seqpool_concat",
                               "fusion_seqpool_cvm_concat",
                               "im2sequence",
                               "im2sequence_grad",
                               "lod_reset",
                               "lod_reset_grad",
                               "match_matrix_tensor",
                               "match_matrix_tensor_grad",
                               "sequence_conv",
                               "sequence_conv_grad",
                               "sequence_expand",
                               "sequence_expand_grad",
                               "sequence_pool",
                               "sequence_pool_grad",
                               "sequence_softmax",
                               "sequence_softmax_grad"});
  add("samples", {"cudnn_lstm", "dpsgd", "graph_khop_sampler", "graph_sample_neighbors",
                  "tdm_sampler", "weighted_sample_neighbors"});
  add("acts outside of its results",
      {"accuracy_check", "assert", "check_numerics", "decode_jpeg", "disable_check_model_nan_inf",
       "disable_check_model_nan_inf_grad", "enable_check_model_nan_inf",
       "enable_check_model_nan_inf_grad", "load_combine", "print", "read_file", "save_combine"});
  add("moves, shares or names memory",
      {"coalesce_tensor", "data", "depend", "distributed_fused_lamb_init", "feed", "fetch",
       "memcpy", "memcpy_d2h", "memcpy_h2d", "nop", "set", "shadow_feed", "shadow_feed_tensors",
       "share_data"});
  add("leaves its results undefined", {"empty", "empty_like"});
  return reasons;
}

std::set<std::string> mode_attributes() {
  return {"align_mode",   "box_coder_type", "code_type",
          "data_format",  "data_layout",    "direction",
          "driver",       "interp_method",  "mode",
          "norm_type",    "normalization",  "padding_algorithm",
          "padding_mode", "pool_type",      "pooltype",
          "pooling_type", "reduce",         "reduce_op",
          "trans",        "message_op",     "uplo",
          "UPLO"};
}

// The kind of tensor of a declared type if it is no dense one, as SelectedRows; else empty.
std::string other_kind_of(const std::string& type) {
  if (type == kTensor || type == kList) return {};
  auto kind = type.substr(type.rfind(':') + 1);
  return kind.substr(0, kind.find("Type"));
}

std::string reason_against_kernel(const std::string& name) {
  const auto info = pir::IrContext::Instance()->GetRegisteredOpInfo(name);
  using Interface = paddle::dialect::OpYamlInfoInterface;
  const auto* interface = info ? info.GetInterfaceImpl<Interface>() : nullptr;
  if (interface == nullptr) return "is not an operator of a kernel";
  const OpYamlInfoParser parsed(interface->get_op_info_(name));
  for (const auto& input : parsed.TensorParams(/*is_kernel=*/true)) {
    const auto kind = other_kind_of(parsed.GetInputType(parsed.InputName2Id().at(input)));
    if (!kind.empty()) return concat("reads a ", kind);
  }
  for (size_t i = 0; i < parsed.OutputNames().size(); ++i) {
    const auto kind = other_kind_of(parsed.GetOutputType(i));
    if (!kind.empty()) return concat("makes a ", kind);
  }
  auto reason = reason_against(name, parsed);
  if (!reason.empty()) return reason;
  const auto& kernels = phi::KernelFactory::Instance().kernels();
  const auto found = kernels.find(parsed.OpRuntimeInfo().kernel_func);
  const auto* const kernel = found == kernels.end() ? nullptr : cpu_kernel_in(found->second);
  if (kernel == nullptr) return "has no CPU kernel";
  const auto others = other_tensors_of(kernel->args_def());
  return others.empty() ? others : concat("reads or makes a ", others);
}

std::map<std::string, CpuKernel> cpu_kernels() {
  std::map<std::string, CpuKernel> found;
  for (const auto& [name, variants] : phi::KernelFactory::Instance().kernels()) {
    if (const auto* const kernel = cpu_kernel_in(variants)) {
      found[name].other_tensors = other_tensors_of(kernel->args_def());
    }
  }
  using Interface = paddle::dialect::OpYamlInfoInterface;
  for (const auto& [name, info] : pir::IrContext::Instance()->registered_op_info_map()) {
    const auto* interface = info.GetInterfaceImpl<Interface>();
    // Other dialects have operators of users, without kernels of Paddle, and of oneDNN.
    if (interface == nullptr || name.rfind("pd_op.", 0) != 0) continue;
    const OpYamlInfoParser parsed(interface->get_op_info_(name));
    const auto kernel = found.find(parsed.OpRuntimeInfo().kernel_func);
    if (kernel != found.end()) kernel->second.operators.push_back(name);
  }
  for (auto& [name, kernel] : found) std::sort(kernel.operators.begin(), kernel.operators.end());
  return found;
}

std::vector<KernelMemory> record_kernel_memory(bool recording) {
  return KernelRecorder::instance().restart(recording);
}

std::unique_ptr<PaddleKernel> make_phi_kernel(const char* description) {
  return std::make_unique<CallableKernel>(description);
}

}  // namespace paddle_ngraph
