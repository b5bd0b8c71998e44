#include "core/paddle/optimizer_calls.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/common/error.h"
#include "core/common/fault_injection.h"
#include "core/common/fork_safe_mutex.h"
#include "core/common/gil_release.h"
#include "core/common/python_callbacks.h"
#include "core/common/python_casts.h"
#include "core/common/tbb_fork_state.h"
#include "core/common/threads.h"
#include "core/engine/events.h"
#include "core/engine/verified_run.h"
#include "core/ov/kernels/clip.h"
#include "core/ov/kernels/optimizer.h"
#include "core/ov/optimizer_updates.h"
#include "core/paddle/call_interception.h"
#include "core/paddle/dynamic_modes.h"
#include "core/paddle/flags.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"
#include "core/paddle/whole_program.h"

// Paddle's flag with which Paddle lists the operators that it computes.
COMMON_DECLARE_int32(low_precision_op_list);

namespace paddle_ngraph {

namespace py = pybind11;

namespace {

// Number of elements summed in float32; the sums of such chunks are added in float64.
constexpr int64_t kSumChunkElements = 4096;

// Norms and scalings of gradients with fewer elements are left to Paddle: calling the loops of this
// package would cost more than their threads save.
constexpr int64_t kMinParallelElements = 1 << 15;

// Loop threads by thread count (FLAGS_ngraph_num_threads); never destroyed, as the process may end
// during a loop.
const LoopThreads& threads() {
  static ForkSafeMutex mutex;
  static auto* const all = std::make_unique<std::map<int, LoopThreads>>().release();
  const int num_threads_wanted = engine_threads();
  // Called before the mutex is locked: the call registers fork handlers, and a fork waits for the
  // mutex.
  mark_tbb_started();
  std::lock_guard<std::mutex> lock(mutex);
  return all->try_emplace(num_threads_wanted, num_threads_wanted).first->second;
}

// Reads the positional arguments of a call. If an argument has another type than the one requested,
// fit() becomes false, and the call falls back to Paddle.
class Arguments {
 public:
  explicit Arguments(PyObject* args) : args_(args) {}

  // Whether the arguments have met every requirement so far.
  bool fit() const { return fit_; }

  void require(bool holds) { fit_ = fit_ && holds; }

  void require_count(size_t count) {
    require(PyTuple_GET_SIZE(args_) == static_cast<Py_ssize_t>(count));
  }

  void require_none(size_t number) { require(at(number) == Py_None); }
  void require_off(size_t number) { require(at(number) == Py_False); }

  bool flag(size_t number) {
    require(PyBool_Check(at(number)));
    return at(number) == Py_True;
  }

  double number(size_t number) {
    PyObject* const argument = at(number);
    if (is_whole(argument)) return static_cast<double>(whole(number));
    require(PyFloat_Check(argument));
    return fit_ ? PyFloat_AS_DOUBLE(argument) : 0;
  }

  // Reads an integer argument. One that overflows int64 makes the call fall back to Paddle, which
  // raises its error.
  int64_t whole(size_t number) {
    PyObject* const argument = at(number);
    require(is_whole(argument));
    if (!fit_) return 0;
    int overflow = 0;
    const int64_t value = PyLong_AsLongLongAndOverflow(argument, &overflow);
    require(overflow == 0);
    return value;
  }

  bool is_text(size_t number, const char* text) {
    require(PyUnicode_Check(at(number)));
    return fit_ && PyUnicode_CompareWithASCIIString(at(number), text) == 0;
  }

  // The argument `number`, which must be a dense float32 CPU tensor; the result shares its memory
  // and keeps it alive.
  phi::DenseTensor floats(size_t number) {
    PyObject* const argument = at(number);
    require(is_tensor(argument));
    if (!fit_) return {};
    const phi::TensorBase* const base = tensor_of(argument).impl().get();
    require(base != nullptr && phi::DenseTensor::classof(base) && base->initialized());
    if (!fit_) return {};
    const auto* const tensor = static_cast<const phi::DenseTensor*>(base);
    require(tensor->dtype() == phi::DataType::FLOAT32 && tensor->numel() > 0);
    require(tensor->place().GetType() == phi::AllocationType::CPU);
    require(is_plain(*tensor) && is_row_major(*tensor));
    return fit_ ? *tensor : phi::DenseTensor();
  }

  float one_float(size_t number) {
    const phi::DenseTensor tensor = floats(number);
    require(fit_ && tensor.numel() == 1);
    return fit_ ? *static_cast<const float*>(tensor.data()) : 0.0F;
  }

  // Returns the result of an operator in place: a tuple of the arguments with these indices.
  PyObject* result_arguments(const std::vector<size_t>& numbers) const {
    PyObject* const result = PyTuple_New(static_cast<Py_ssize_t>(numbers.size()));
    for (size_t i = 0; result != nullptr && i < numbers.size(); ++i) {
      PyObject* const argument = PyTuple_GET_ITEM(args_, static_cast<Py_ssize_t>(numbers[i]));
      Py_INCREF(argument);
      PyTuple_SET_ITEM(result, static_cast<Py_ssize_t>(i), argument);
    }
    return result;
  }

 private:
  PyObject* at(size_t number) {
    if (!fit_ || static_cast<Py_ssize_t>(number) >= PyTuple_GET_SIZE(args_)) {
      fit_ = false;
      return Py_None;
    }
    return PyTuple_GET_ITEM(args_, static_cast<Py_ssize_t>(number));
  }

  static bool is_whole(PyObject* argument) {
    return PyLong_Check(argument) && !PyBool_Check(argument);
  }

  PyObject* args_;
  bool fit_ = true;
};

float* data(const phi::DenseTensor& tensor) { return static_cast<float*>(memory(tensor)); }

MemoryRange memory_range(const phi::DenseTensor& tensor, bool is_written) {
  return {data(tensor), num_bytes(tensor), is_written};
}

// Whether no range of written memory overlaps another range.
bool are_disjoint(std::vector<MemoryRange> ranges) {
  try {
    require_disjoint(std::move(ranges));
  } catch (const InvalidInput&) {
    return false;
  }
  return true;
}

// An optimizer update with the operands of a call, parsed.
struct ParsedUpdate {
  std::unique_ptr<OptimizerUpdate> step;
  phi::DenseTensor gradient;
  phi::DenseTensor rate;
  std::vector<phi::DenseTensor> states;  // the parameter first, then the optimizer states
  // Powers of Adam's betas, with the beta by which the update multiplies each of them.
  std::vector<std::pair<phi::DenseTensor, float>> powers;
  std::vector<size_t> result_arguments;

  // Whether all shapes are equal, and no memory that the update writes overlaps other memory.
  bool is_sound() const {
    std::vector<MemoryRange> ranges{memory_range(gradient, false), memory_range(rate, false)};
    for (const auto& state : states) {
      if (state.dims() != gradient.dims()) return false;
      ranges.push_back(memory_range(state, true));
    }
    for (const auto& power : powers) ranges.push_back(memory_range(power.first, true));
    return are_disjoint(std::move(ranges));
  }

  void take() const {
    if (has_fault(Step::kUpdate)) return;
    const int64_t size = gradient.numel();
    threads().run((size + kStepChunk - 1) / kStepChunk, 2 * kStepChunk,
                  [&](int64_t begin, int64_t end) {
                    for (int64_t chunk = begin; chunk < end; ++chunk) update(chunk * kStepChunk);
                  });
    for (const auto& power : powers) *data(power.first) *= power.second;
  }

 private:
  // Updates one chunk of the parameter and its states, from element `first` on.
  void update(int64_t first) const {
    std::array<float*, 4> updated{};
    for (size_t i = 0; i < states.size(); ++i) updated.at(i) = data(states[i]) + first;
    const int64_t count = std::min(kStepChunk, gradient.numel() - first);
    step->update(count, data(gradient) + first, updated.data());
  }
};

ParsedUpdate sgd(Arguments& arguments) {
  arguments.require_count(5);
  arguments.require_none(3);  // argument 3, master_param, must be None
  arguments.require_off(4);   // argument 4, multi_precision, must be off
  const float rate = arguments.one_float(1);
  ParsedUpdate step{
      step_of(SgdAttributes(), &rate, 1), arguments.floats(2), arguments.floats(1), {}, {}, {0, 3}};
  step.states.push_back(arguments.floats(0));
  return step;
}

ParsedUpdate momentum(Arguments& arguments) {
  arguments.require_count(11);
  arguments.require_none(4);  // argument 4, master_param, must be None
  arguments.require_off(9);   // argument 9, multi_precision, must be off
  // Argument 10, rescale_grad, has no effect on the CPU: only its type is checked.
  arguments.number(10);
  const float rate = arguments.one_float(3);
  MomentumAttributes attributes;
  attributes.mu = arguments.number(5);
  attributes.nesterov = arguments.flag(6);
  attributes.decays = arguments.is_text(7, "l2_decay");
  attributes.decay = arguments.number(8);
  ParsedUpdate step{
      step_of(attributes, &rate, 2), arguments.floats(1), arguments.floats(3), {}, {}, {0, 2, 4}};
  for (size_t state : {0, 2}) step.states.push_back(arguments.floats(state));
  return step;
}

// Parses Adam's arguments; `first`: the index of the first one after the decay, which is in
// `attributes`.
ParsedUpdate adam_step(Arguments& arguments, AdamAttributes attributes, size_t first) {
  arguments.require_count(first + 5);
  arguments.flag(first);             // checks the type of lazy_mode
  arguments.whole(first + 1);        // checks the type of min_row_size_to_use_multithread
  arguments.require_none(8);         // argument 8, master_param, must be None
  arguments.require_none(9);         // argument 9, skip_update, must be None
  arguments.require_off(first + 2);  // argument multi_precision must be off
  arguments.require_off(first + 3);  // argument use_global_beta_pow must be off
  attributes.beta1 = arguments.number(10);
  attributes.beta2 = arguments.number(11);
  attributes.epsilon = arguments.number(12);
  std::vector<size_t> states{0, 3, 4};
  if (arguments.flag(first + 4)) {
    states.push_back(5);
  } else {
    arguments.require_none(5);
  }
  const float numbers[] = {arguments.one_float(2), arguments.one_float(6), arguments.one_float(7)};
  ParsedUpdate step{step_of(attributes, numbers, states.size()),
                    arguments.floats(1),
                    arguments.floats(2),
                    {},
                    {},
                    {}};
  for (size_t state : states) step.states.push_back(arguments.floats(state));
  step.powers = {{arguments.floats(6), static_cast<float>(attributes.beta1)},
                 {arguments.floats(7), static_cast<float>(attributes.beta2)}};
  step.result_arguments = {0, 3, 4, 5, 6, 7, 8};
  return step;
}

ParsedUpdate adam(Arguments& arguments) { return adam_step(arguments, {}, 13); }

ParsedUpdate adamw(Arguments& arguments) {
  AdamAttributes attributes;
  attributes.ratio = arguments.number(13);
  attributes.decay = arguments.number(14);
  attributes.decays = arguments.flag(15);
  return adam_step(arguments, attributes, 16);
}

// The function that returns Paddle's tracer: set by the first interception, under the GIL; never
// destroyed.
const py::object* tracer_getter = nullptr;

// Whether a call of the operator in Paddle would do nothing else than compute: under `auto_cast`
// Paddle may cast the operands first, and with gradients on autograd records the operator.
bool only_computes(bool is_differentiable) {
  if ((*tracer_getter)().is_none() || has_mixed_precision()) return false;
  return !is_differentiable || !has_gradients();
}

// Whether a call has to be computed by Paddle: the plugin is off, an observer needs to see
// operators, Paddle lists the computed operators (low_precision_op_list), or there are keyword
// arguments.
bool must_use_paddle(PyObject* kwargs) {
  return !FLAGS_use_ngraph || observes_operators() || FLAGS_low_precision_op_list != 0 ||
         (kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0);
}

template <ParsedUpdate (*kOf)(Arguments&)>
PyObject* call(PyObject* args, PyObject* kwargs) {
  if (must_use_paddle(kwargs)) return nullptr;
  Arguments arguments(args);
  const ParsedUpdate step = kOf(arguments);
  if (!arguments.fit() || !step.is_sound() || !only_computes(false)) return nullptr;
  {
    const GilRelease released;
    step.take();
  }
  add(Quantity::kOptimizerSteps);
  return arguments.result_arguments(step.result_arguments);
}

PyObject* new_tensor(const phi::DenseTensor& result) {
  return new_python_tensor(paddle::Tensor(std::make_shared<phi::DenseTensor>(result)));
}

// Replaces Paddle's squared_l2_norm(x): the sum of the squares, of shape [1].
PyObject* squared_norm(PyObject* args, PyObject* kwargs) {
  if (must_use_paddle(kwargs)) return nullptr;
  Arguments arguments(args);
  arguments.require_count(1);
  const phi::DenseTensor x = arguments.floats(0);
  if (!arguments.fit() || x.numel() < kMinParallelElements || !only_computes(true)) return nullptr;
  phi::DenseTensor result = allocate({ElementType::f32, {1}});
  {
    const GilRelease released;
    const int64_t parts = (x.numel() + kSumChunkElements - 1) / kSumChunkElements;
    std::vector<float> sums(static_cast<size_t>(parts));
    threads().run(parts, kSumChunkElements, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t first = part * kSumChunkElements;
        const int64_t count = std::min(kSumChunkElements, x.numel() - first);
        sums[static_cast<size_t>(part)] = sum_of_squares(data(x) + first, count);
      }
    });
    const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
    *data(result) = static_cast<float>(sum);
    add(Quantity::kClippingLoops);
  }
  return new_tensor(result);
}

// The operands of a call multiply(x, y) in which y has one element.
struct Scaling {
  phi::DenseTensor x, y;

  // The operands of a call of multiply; nothing if the call has to fall back to Paddle.
  static std::optional<Scaling> of(PyObject* args, PyObject* kwargs) {
    if (must_use_paddle(kwargs)) return std::nullopt;
    Arguments arguments(args);
    arguments.require_count(2);
    Scaling found;
    found.x = arguments.floats(0);
    if (!arguments.fit() || found.x.numel() < kMinParallelElements) return std::nullopt;
    found.y = arguments.floats(1);
    if (!arguments.fit() || found.y.numel() != 1) return std::nullopt;
    if (found.y.dims().size() > found.x.dims().size() || !only_computes(true)) return std::nullopt;
    return found;
  }

  // Writes x * y to `result`, which may share the memory of x.
  void write(phi::DenseTensor* result) const {
    const GilRelease released;
    const float factor = *data(y);
    const int64_t chunks = (x.numel() + kStepChunk - 1) / kStepChunk;
    threads().run(chunks, kStepChunk, [&](int64_t begin, int64_t end) {
      const int64_t first = begin * kStepChunk;
      const int64_t count = std::min(end * kStepChunk, x.numel()) - first;
      scale(data(x) + first, count, factor, data(*result) + first);
    });
    add(Quantity::kClippingLoops);
  }
};

// Replaces Paddle's multiply(x, y) if y has one element.
PyObject* scaled(PyObject* args, PyObject* kwargs) {
  const auto scaling = Scaling::of(args, kwargs);
  if (!scaling) return nullptr;
  phi::DenseTensor result;
  try {
    result = empty({scaling->x.dtype(), scaling->x.dims(), scaling->x.layout()});
  } catch (const std::bad_alloc&) {
    return nullptr;  // falls back to Paddle, which reports the lack of memory in more detail
  }
  scaling->write(&result);
  return new_tensor(result);
}

// Replaces Paddle's in-place multiply_(x, y) if y has one element.
PyObject* scaled_in_place(PyObject* args, PyObject* kwargs) {
  auto scaling = Scaling::of(args, kwargs);
  if (!scaling ||
      !are_disjoint({memory_range(scaling->x, true), memory_range(scaling->y, false)})) {
    return nullptr;
  }
  scaling->write(&scaling->x);
  PyObject* const x = PyTuple_GET_ITEM(args, 0);
  tensor_of(x).bump_inplace_version();
  Py_INCREF(x);
  return x;
}

// Set while the thread compares a call: Paddle computes all calls in it.
thread_local bool is_checking = false;

VerifiedRuns verified_runs;

bool is_scaling(PyObject* args, PyObject* kwargs) { return Scaling::of(args, kwargs).has_value(); }
bool is_any(PyObject* /*args*/, PyObject* kwargs) { return !must_use_paddle(kwargs); }

struct Kernel {
  const char* name;
  Substitute compute;
  // Whether a call may be computed here: false spares the copies for a check.
  bool (*may_compute)(PyObject* args, PyObject* kwargs);
};

constexpr std::array<Kernel, 7> kKernels{{{"sgd_", call<sgd>, is_any},
                                          {"momentum_", call<momentum>, is_any},
                                          {"adam_", call<adam>, is_any},
                                          {"adamw_", call<adamw>, is_any},
                                          {"squared_l2_norm", squared_norm, is_any},
                                          {"multiply", scaled, is_scaling},
                                          {"multiply_", scaled_in_place, is_scaling}}};

// The arguments of a call, with copies of its tensors.
py::tuple copied(PyObject* args) {
  py::tuple copies(static_cast<size_t>(PyTuple_GET_SIZE(args)));
  for (size_t i = 0; i < copies.size(); ++i) {
    PyObject* const argument = PyTuple_GET_ITEM(args, static_cast<Py_ssize_t>(i));
    const bool is_dense = is_tensor(argument) && tensor_of(argument).is_dense_tensor() &&
                          tensor_of(argument).initialized();
    copies[i] =
        is_dense
            ? py::reinterpret_steal<py::object>(new_tensor(copy_of(*dense(tensor_of(argument)))))
            : py::reinterpret_borrow<py::object>(argument);
  }
  return copies;
}

// Computes a call, and compares its result with that of Paddle's kernel on copies of the arguments.
PyObject* computed_and_checked(const Kernel& kernel, PyObject* args, PyObject* kwargs) {
  const py::tuple given = copied(args);
  auto result = py::reinterpret_steal<py::object>(kernel.compute(args, kwargs));
  if (result) {
    is_checking = true;
    try {
      callback(PythonCallback::kCheckCall)(kernel.name, given, result);
    } catch (...) {
      is_checking = false;
      throw;
    }
    is_checking = false;
  }
  return result.release().ptr();
}

template <size_t kIndex>
PyObject* substitute(PyObject* args, PyObject* kwargs) {
  const Kernel& kernel = std::get<kIndex>(kKernels);
  if (is_checking) return nullptr;
  const bool is_verified =
      FLAGS_ngraph_verify > 0 && kernel.may_compute(args, kwargs) && verified_runs.next();
  return is_verified ? computed_and_checked(kernel, args, kwargs) : kernel.compute(args, kwargs);
}

template <size_t... kIndices>
std::map<std::string, Substitute> substitutes_of(std::index_sequence<kIndices...> /*indices*/) {
  return {{kKernels[kIndices].name, substitute<kIndices>}...};
}

}  // namespace

void replace_optimizer_kernel(const py::object& function, const std::string& name,
                              const py::object& tracer) {
  static const auto substitutes = substitutes_of(std::make_index_sequence<kKernels.size()>());
  const auto found = substitutes.find(name);
  if (found == substitutes.end())
    throw NgraphError(concat(name, " is no operator that optimizers call"));
  if (tracer_getter == nullptr) tracer_getter = std::make_unique<py::object>(tracer).release();
  substitute_calls(function, found->second);
}

}  // namespace paddle_ngraph
