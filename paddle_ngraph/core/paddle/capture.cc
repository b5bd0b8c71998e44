#include "core/paddle/capture.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "paddle/phi/core/dense_tensor.h"

#include "core/common/error.h"
#include "core/common/python_calls.h"
#include "core/paddle/announced_calls.h"
#include "core/paddle/exposure.h"
#include "core/paddle/python_tensors.h"
#include "core/paddle/tensors.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

constexpr size_t kLongestPath = 4096;

thread_local Capture* capture_here = nullptr;
thread_local bool kept_tensors_are_seen = false;
uint64_t settings = 0;  // guarded by Python's lock

// Tensors without memory, and who computes them. Guarded by Python's lock. A tensor in it is held
// by its capture.
std::unordered_map<PyObject*, Capture*>& lazy_tensors() {
  static auto* const tensors = new std::unordered_map<PyObject*, Capture*>();
  return *tensors;
}

// Memory that calls which wait will read, and their captures, which hold it. Guarded by Python's
// lock.
std::unordered_map<const phi::Allocation*, std::vector<Capture*>>& readers() {
  static auto* const captures =
      new std::unordered_map<const phi::Allocation*, std::vector<Capture*>>();
  return *captures;
}

// Tensors that could not be computed, and what was raised then. They are held for good.
std::unordered_map<PyObject*, std::string>& failed_tensors() {
  static auto* const tensors = new std::unordered_map<PyObject*, std::string>();
  return *tensors;
}

// What Python's collector frees may call Paddle, in any thread. While this lives it does not
// collect: such a call would wait for the tensors that are being computed, or end up in a program.
class NoCollection {
 public:
  NoCollection() {
    if (in_all++ == 0) was_on = switch_on(false);
    ++in_this_thread;
  }
  ~NoCollection() {
    --in_this_thread;
    if (--in_all == 0 && was_on) switch_on(true);
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;

  // A forked process has only the thread that forked it.
  static void forget_other_threads() {
    if (in_all > 0 && in_this_thread == 0 && was_on) switch_on(true);
    in_all = in_this_thread;
  }

 private:
  // Returns whether it was on.
  static bool switch_on(bool on) {
#if PY_VERSION_HEX >= 0x030A0000
    return (on ? PyGC_Enable() : PyGC_Disable()) == 1;
#else  // has no function for it in C that may be called after a fork
    static_cast<void>(on);
    return false;
#endif
  }

  // Guarded by Python's lock.
  static inline int in_all = 0;
  static inline bool was_on = false;
  static inline thread_local int in_this_thread = 0;
};

bool is_lazy(PyObject* tensor) {
  return !lazy_tensors().empty() && lazy_tensors().count(tensor) > 0;
}

bool get_flag(PyObject* object, const char* name) {
  const py::object flag = py::reinterpret_borrow<py::object>(object).attr(name);
  return flag.ptr() == Py_True;
}

bool stops_gradient(PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("stop_gradient");
  const auto flag = py::reinterpret_steal<py::object>(PyObject_GetAttr(tensor, name));
  if (!flag) throw py::error_already_set();
  return flag.ptr() == Py_True;
}

// The dense tensor with memory that an object has on the CPU, or null.
const phi::DenseTensor* plain_tensor(PyObject* object) {
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !phi::DenseTensor::classof(base.get())) return nullptr;
  const auto* tensor = static_cast<const phi::DenseTensor*>(base.get());
  if (tensor->Holder() == nullptr || tensor->numel() == 0) return nullptr;
  return tensor->place().GetType() == phi::AllocationType::CPU ? tensor : nullptr;
}

// What a tensor that is given or returned is known by; nothing if it cannot be part of a graph.
std::optional<ValueKind> kind_of(PyObject* object) {
  if (is_lazy(object)) return std::nullopt;  // of another thread
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || is_known_outside(*tensor)) return std::nullopt;
  return ValueKind{tensor->dtype(),
                   tensor->dims(),
                   stops_gradient(object),
                   tensor->meta().is_contiguous(),
                   Py_TYPE(object)->tp_base != &PyBaseObject_Type,
                   tensor->strides()};
}

// Whether it is a tensor that nobody can read: some operators return them in some modes.
bool has_nothing(PyObject* object, bool may_wait = false) {
  if (!is_tensor(object) || (is_lazy(object) && !may_wait)) return false;
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !base->initialized()) return true;
  if (!phi::DenseTensor::classof(base.get()) || base->numel() == 0) return false;
  return static_cast<const phi::DenseTensor&>(*base).Holder()->ptr() == nullptr;
}

// The shape and dtype of a tensor without elements, which needs no memory.
std::shared_ptr<const phi::DenseTensorMeta> empty_meta(PyObject* object) {
  const auto& base = tensor_of(object).impl();
  if (base == nullptr || !phi::DenseTensor::classof(base.get())) return nullptr;
  const auto& tensor = static_cast<const phi::DenseTensor&>(*base);
  if (tensor.dims().size() <= 0 || tensor.numel() != 0) return nullptr;
  return std::make_shared<phi::DenseTensorMeta>(tensor.dtype(), tensor.dims());
}

// A tensor that has no memory so far, or needs none.
py::object make_tensor(const phi::DenseTensorMeta& meta, bool stop_gradient) {
  const paddle::Tensor made(std::make_shared<phi::DenseTensor>(
      std::make_shared<phi::Allocation>(nullptr, 0, phi::CPUPlace()), meta));
  auto tensor = py::reinterpret_steal<py::object>(new_python_tensor(made));
  if (!stop_gradient) {
    static PyObject* const name = PyUnicode_InternFromString("stop_gradient");
    const NoCapture none;
    if (PyObject_SetAttr(tensor.ptr(), name, Py_False) != 0) throw py::error_already_set();
  }
  return tensor;
}

bool is_whole_number(phi::DataType dtype) {
  return dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32 ||
         dtype == phi::DataType::BOOL || dtype == phi::DataType::UINT8 ||
         dtype == phi::DataType::INT8 || dtype == phi::DataType::INT16;
}

bool is_slice(PyObject* object) { return PySlice_Check(object); }

bool is_of_type(PyObject* object, const char* name) {
  return std::string(Py_TYPE(object)->tp_name).find(name) != std::string::npos;
}

// The place of the processor, or of a tensor there.
bool is_cpu_place(PyObject* object) {
  if (is_of_type(object, "CPUPlace")) return true;
  return is_of_type(object, ".Place") &&
         py::reinterpret_borrow<py::object>(object).attr("is_cpu_place")().ptr() == Py_True;
}

// Objects that are equal to others of their type, however often they are made.
bool is_constant(PyObject* object) {
  if (object == Py_None || object == Py_Ellipsis || PyBool_Check(object)) return true;
  return PyLong_CheckExact(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object) ||
         is_of_type(object, "DataType") || is_cpu_place(object);
}

// A number of NumPy's or Paddle's, which operators take for one of Python's. Others of NumPy's they
// do not: these become what the tensor is, those may make something else of it.
bool is_other_number(PyObject* object) {
  constexpr std::array<const char*, 2> kNames{"numpy.float64", "TensorSize"};
  return std::any_of(kNames.begin(), kNames.end(), [object](const char* name) {
    return std::strcmp(Py_TYPE(object)->tp_name, name) == 0;
  });
}

py::object python_number(PyObject* number) {
  auto plain = py::reinterpret_steal<py::object>(PyIndex_Check(number) ? PyNumber_Long(number)
                                                                       : PyNumber_Float(number));
  if (!plain) throw py::error_already_set();
  return plain;
}

bool equals_constant(const Argument& constant, PyObject* given) {
  PyObject* expected = constant.constant.ptr();
  if (expected == given) return true;
  if (Py_TYPE(expected) != Py_TYPE(given)) {
    return is_other_number(given) && equals_constant(constant, python_number(given).ptr());
  }
  if (constant.is_any_of_type) return is_cpu_place(given);
  if (PyFloat_CheckExact(expected)) {
    const double one = PyFloat_AS_DOUBLE(expected), other = PyFloat_AS_DOUBLE(given);
    return std::memcmp(&one, &other, sizeof(one)) == 0;
  }
  const int is_equal = PyObject_RichCompareBool(expected, given, Py_EQ);
  if (is_equal < 0) throw py::error_already_set();
  return is_equal == 1;
}

// A reason with the line of Python outside of Paddle, and of what calls its layers, that it comes
// from.
std::string line_of_user(const std::string& reason) {
  if (reason == kEndOfFunction) return reason;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && !frame.is_none()) {
    const std::string file = py::str(frame.attr("f_code").attr("co_filename"));
    const bool is_ours = file.find("/paddle_ngraph/frontends/") != std::string::npos;
    if (file.find("/paddle/") == std::string::npos && file.find("<") != 0 && !is_ours) {
      return concat(reason, " (", file, ", line ", std::string(py::str(frame.attr("f_lineno"))),
                    ")");
    }
    frame = frame.attr("f_back");
  }
  return reason;
}

bool has_items(PyObject* object) {
  return PyList_Check(object) || PyTuple_Check(object) || is_slice(object);
}

// A shape is a list.
PyTypeObject* type_of_items(PyObject* items) {
  return is_of_type(items, "libpaddle.Size") ? &PyList_Type : Py_TYPE(items);
}

// The members of a list, tuple or slice.
std::vector<PyObject*> members(PyObject* items) {
  if (is_slice(items)) {
    const auto* slice = reinterpret_cast<PySliceObject*>(items);
    return {slice->start, slice->stop, slice->step};
  }
  PyObject** first = PySequence_Fast_ITEMS(items);
  return {first, first + PySequence_Fast_GET_SIZE(items)};
}

// Calls `visit` with all tensors within an argument; returns false if it holds too much to tell.
template <typename Visit>
bool visit_tensors(PyObject* argument, const Visit& visit, int depth = 0) {
  constexpr int kDeepest = 4;
  if (depth > kDeepest) return false;
  if (has_items(argument)) {
    for (PyObject* member : members(argument)) {
      if (!visit_tensors(member, visit, depth + 1)) return false;
    }
  } else if (is_tensor(argument)) {
    visit(argument);
  }
  return true;
}

// Most arguments, and most members of lists: neither tensors, nor of NumPy's.
bool is_of_python(PyObject* object) {
  return object == Py_None || PyLong_CheckExact(object) || PyFloat_CheckExact(object) ||
         PyBool_Check(object) || PyUnicode_CheckExact(object);
}

// A number of NumPy's whose kind Paddle knows, if of whole numbers or of others.
bool is_numpy_number(PyObject* object, bool is_whole) {
  const char* name = Py_TYPE(object)->tp_name;
  if (std::strncmp(name, "numpy.", 6) != 0) return false;
  const std::string kind = name + 6;
  return is_whole ? kind == "int64" || kind == "int32" : kind == "float32" || kind == "float16";
}

// Whether an operator takes a number of NumPy's for the same number of Python's. To those that
// compute with it, it is a tensor of the dtype of the other tensor, with 1 for a shape in powers.
bool is_number_of_python(PyObject* object, const AnnouncedFunction& function,
                         PyObject* first_argument) {
  const bool is_whole = is_numpy_number(object, true);
  if (!is_whole && !is_numpy_number(object, false)) return false;
  if (!function.rule.is_arithmetic) return true;
  if (!is_tensor(first_argument)) return false;
  const auto dtype = tensor_of(first_argument).dtype();
  if (dtype == phi::DataType::FLOAT32 || dtype == phi::DataType::FLOAT64) {
    return is_whole || function.name != "__pow__";
  }
  return is_whole && (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32);
}

// An array of whole numbers of NumPy's, with so many dimensions.
bool is_array_of_numbers(PyObject* object, int least_dimensions, int most_dimensions) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") != 0) return false;
  const auto array = py::reinterpret_borrow<py::array>(object);
  const bool is_known = array.dtype().kind() == 'i' && array.itemsize() >= 4;
  return is_known && array.ndim() >= least_dimensions && array.ndim() <= most_dimensions;
}

}  // namespace

bool ValueKind::operator==(const ValueKind& other) const {
  return dtype == other.dtype && shape == other.shape && stop_gradient == other.stop_gradient &&
         is_contiguous == other.is_contiguous && is_parameter == other.is_parameter &&
         strides == other.strides;
}

// -- paths ---------------------------------------------------------------------------------------

CapturedPaths::CapturedPaths(py::object make_graph, bool trains)
    : root_(std::make_shared<CapturedPath>()),
      make_graph_(std::move(make_graph)),
      trains_(trains) {}

const std::shared_ptr<CapturedPath>& CapturedPaths::root() {
  if (settings_ != settings) forget();
  settings_ = settings;
  return root_;
}

void CapturedPaths::count_path() {
  if (++paths_ == kMostPaths) forget_paths();
}

void CapturedPaths::count_graph() {
  if (++graphs_ == kMostGraphs) forget();
}

// Calls that are going on keep what they hold. Patterns stay: whoever comes again finds them.
void CapturedPaths::forget_paths() {
  paths_ = 0;
  for (auto& [number, family] : families_) family.ends.clear();
  root_ = std::make_shared<CapturedPath>();
}

void CapturedPaths::forget() {
  forget_paths();
  graphs_ = 0;
  const auto freed = std::exchange(families_, {});  // at the end: that may call Python
}

namespace {

std::vector<CapturedPath*> calls_until(const CapturedPath* path) {
  std::vector<CapturedPath*> found;
  for (; path->previous != nullptr; path = path->previous) {
    found.push_back(const_cast<CapturedPath*>(path));
  }
  std::reverse(found.begin(), found.end());
  return found;
}

std::vector<const CapturedCall*> calls_of(const CapturedPath& path) {
  std::vector<const CapturedCall*> calls;
  for (const CapturedPath* each : calls_until(&path)) calls.push_back(&each->call);
  return calls;
}

std::vector<phi::DDim> shapes_of(const CapturedPath& path) {
  std::vector<phi::DDim> shapes;
  for (const CapturedCall* call : calls_of(path)) {
    for (const ValueKind& kind : call->kinds) shapes.push_back(kind.shape);
  }
  return shapes;
}

bool is_similar(const Argument& one, const Argument& other) {
  if (one.kind != other.kind) return false;
  switch (one.kind) {
    case Argument::Kind::kValue:
      return one.value == other.value;
    case Argument::Kind::kConstant:
      return equals_constant(one, other.constant.ptr());
    case Argument::Kind::kNothing:
      return one.empty == other.empty ||
             (one.empty != nullptr && other.empty != nullptr && *one.empty == *other.empty);
    case Argument::Kind::kItems:
      break;
  }
  return one.type == other.type &&
         std::equal(one.items.begin(), one.items.end(), other.items.begin(), other.items.end(),
                    [](const auto& a, const auto& b) { return is_similar(a, b); });
}

bool is_similar(const ValueKind& one, const ValueKind& other) {
  return one.dtype == other.dtype && one.shape.size() == other.shape.size() &&
         one.stop_gradient == other.stop_gradient && one.is_contiguous == other.is_contiguous &&
         one.is_parameter == other.is_parameter && (!one.is_parameter || one.shape == other.shape);
}

// Whether two calls differ in sizes only.
bool is_similar(const CapturedCall& one, const CapturedCall& other) {
  const auto are_similar = [](const auto& these, const auto& those) {
    return std::equal(these.begin(), these.end(), those.begin(), those.end(),
                      [](const auto& a, const auto& b) { return is_similar(a, b); });
  };
  return one.function == other.function && one.has_gradient == other.has_gradient &&
         one.first_value == other.first_value && one.first_result == other.first_result &&
         one.views == other.views && are_similar(one.arguments, other.arguments) &&
         std::equal(one.keywords.begin(), one.keywords.end(), other.keywords.begin(),
                    other.keywords.end(),
                    [](const py::str& a, const py::str& b) { return a.equal(b); }) &&
         is_similar(one.result, other.result) && are_similar(one.kinds, other.kinds);
}

bool is_similar(const CapturedPath& path, const std::vector<const CapturedCall*>& calls) {
  const CapturedPath* each = &path;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call, each = each->previous) {
    if (each->previous == nullptr) return false;
    if (&each->call != *call && !is_similar(each->call, **call)) return false;
  }
  return each->previous == nullptr;
}

std::vector<const CapturedCall*> pointers(const std::vector<CapturedCall>& calls) {
  std::vector<const CapturedCall*> found;
  for (const CapturedCall& call : calls) found.push_back(&call);
  return found;
}

bool covers(const std::vector<phi::DDim>& open, const std::vector<phi::DDim>& shapes) {
  for (size_t i = 0; i < shapes.size(); ++i) {
    for (int axis = 0; axis < shapes[i].size(); ++axis) {
      if (open[i][axis] >= 0 && open[i][axis] != shapes[i][axis]) return false;
    }
  }
  return true;
}

void open_what_differs(const std::vector<phi::DDim>& others, std::vector<phi::DDim>* shapes) {
  for (size_t i = 0; i < shapes->size(); ++i) {
    for (int axis = 0; axis < others[i].size(); ++axis) {
      if ((*shapes)[i][axis] != others[i][axis]) (*shapes)[i][axis] = -1;
    }
  }
}

}  // namespace

void CapturedPaths::add_end(const CapturedPath& root, CapturedPath& path) {
  if (&root == root_.get()) families_[path.family].ends.push_back(&path);
}

std::shared_ptr<CapturedPattern> CapturedPaths::pattern_of(const CapturedPath& path) {
  const auto found = families_.find(path.family);
  if (found == families_.end() || found->second.is_closed) return nullptr;
  const std::vector<const CapturedCall*> calls = calls_of(path);
  const auto has_gradient = [](const CapturedCall* call) { return call->has_gradient; };
  if (std::any_of(calls.begin(), calls.end(), has_gradient)) return nullptr;
  auto& [ends, patterns, _] = found->second;
  const std::vector<phi::DDim> own = shapes_of(path);
  std::vector<phi::DDim> open = own;
  bool has_pattern = false;
  for (const auto& pattern : patterns) {
    if (!is_similar(path, pointers(pattern->calls))) continue;
    if (covers(pattern->shapes, own)) return pattern;
    open_what_differs(pattern->shapes, &open);
    has_pattern = true;
  }
  size_t similar = 0;
  for (const CapturedPath* end : ends) {
    if (!is_similar(*end, calls)) continue;
    open_what_differs(shapes_of(*end), &open);
    ++similar;
  }
  if (!has_pattern && similar <= kOwnGraphs) return nullptr;
  auto pattern = std::make_shared<CapturedPattern>();
  for (const CapturedCall* call : calls) pattern->calls.push_back(*call);
  pattern->shapes = std::move(open);
  return patterns.emplace_back(std::move(pattern));
}

std::vector<std::vector<phi::DDim>> CapturedPaths::examples_of(const CapturedPath& path) const {
  constexpr size_t kMost = 8;
  const std::vector<const CapturedCall*> calls = calls_of(path);
  std::vector<std::vector<phi::DDim>> found{shapes_of(path)};
  const auto family = families_.find(path.family);
  if (family == families_.end()) return found;
  for (const CapturedPath* end : family->second.ends) {
    if (found.size() == kMost) break;
    if (end != &path && is_similar(*end, calls)) found.push_back(shapes_of(*end));
  }
  return found;
}

void CapturedPaths::close_family(const CapturedPath& path) {
  Family& family = families_[path.family];
  family.is_closed = true;
  const auto freed = std::exchange(family.patterns, {});
}

py::list CapturedPaths::ends() const {
  py::list found;
  std::vector<std::pair<const CapturedPath*, int>> open{{root_.get(), 0}};
  while (!open.empty()) {
    const auto [path, length] = open.back();
    open.pop_back();
    if (!path->breaks.empty() || !path->graphs.empty()) {
      py::list graphs;
      for (const auto& [wanted, graph] : path->graphs) graphs.append(graph);
      py::list breaks;
      for (const auto& [reason, line] : path->breaks) breaks.append(line);
      found.append(py::make_tuple(length, breaks, graphs));
    }
    for (auto next = path->next.rbegin(); next != path->next.rend(); ++next) {
      open.emplace_back(next->get(), length + 1);
    }
  }
  return found;
}

// -- threads -------------------------------------------------------------------------------------

NoCapture::NoCapture() : before_(std::exchange(capture_here, nullptr)) {}

NoCapture::~NoCapture() { capture_here = before_; }

void note_setting() { ++settings; }

uint64_t number_of_settings() { return settings; }

void set_kept_tensors_are_seen(bool on) { kept_tensors_are_seen = on; }

namespace {

// What is found of the first tensor among the arguments of which something is.
template <typename Find>
auto find_any(const Find& find, PyObject* argument, int depth = 0) -> decltype(find(argument)) {
  constexpr int kDeepest = 4;
  if (argument == nullptr || depth > kDeepest) return nullptr;
  if (PyDict_Check(argument)) {
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(argument, &at, &key, &value) != 0;) {
      if (const auto found = find_any(find, value, depth + 1)) return found;
    }
    return nullptr;
  }
  if (has_items(argument)) {
    for (PyObject* member : members(argument)) {
      if (const auto found = find_any(find, member, depth + 1)) return found;
    }
    return nullptr;
  }
  return find(argument);
}

Capture* capture_of_lazy(PyObject* argument) {
  const auto found = lazy_tensors().find(argument);
  return found == lazy_tensors().end() ? nullptr : found->second;
}

// Views of a tensor have its memory, too.
Capture* reader_of(PyObject* argument) {
  if (readers().empty() || !is_tensor(argument)) return nullptr;
  const phi::DenseTensor* tensor = plain_tensor(argument);
  if (tensor == nullptr) return nullptr;
  const auto found = readers().find(tensor->Holder().get());
  return found == readers().end() ? nullptr : found->second.front();
}

const std::string* error_of(PyObject* argument) {
  const auto found = failed_tensors().find(argument);
  return found == failed_tensors().end() ? nullptr : &found->second;
}

// Whose calls have to be computed before these arguments are used.
Capture* owner_of(const std::array<PyObject*, 3>& arguments, bool may_write) {
  for (PyObject* argument : arguments) {
    if (Capture* found = find_any(capture_of_lazy, argument)) return found;
    if (!may_write) continue;
    if (Capture* found = find_any(reader_of, argument)) return found;
  }
  return nullptr;
}

}  // namespace

bool does_any_wait(PyObject* args, PyObject* kwargs) {
  for (PyObject* argument : {args, kwargs}) {
    if (!failed_tensors().empty() && find_any(error_of, argument) != nullptr) return true;
    if (!lazy_tensors().empty() && find_any(capture_of_lazy, argument) != nullptr) return true;
  }
  return false;
}

bool settle_foreign(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write) {
  const std::array<PyObject*, 3> arguments{self, args, kwargs};
  if (!failed_tensors().empty()) {
    for (PyObject* argument : arguments) {
      if (const std::string* error = find_any(error_of, argument)) {
        PyErr_SetString(PyExc_RuntimeError,
                        concat("the tensor was not computed: ", *error).c_str());
        return false;
      }
    }
  }
  if (lazy_tensors().empty() && readers().empty()) return true;
  // Whoever computes may end the capture: it is looked up anew each time.
  while (Capture* owner = owner_of(arguments, may_write)) {
    if (!owner->settle_for_other()) return false;
  }
  return true;
}

void forget_captures_of_other_threads() {
  NoCollection::forget_other_threads();
  for (const auto& [tensor, owner] : lazy_tensors()) owner->forget_other_thread();
}

std::string tensor_versions(const py::list& tensors) {
  std::string versions;
  for (const py::handle& object : tensors) {
    auto& tensor = tensor_of(object.ptr());
    versions += std::to_string(tensor.initialized() ? tensor.current_inplace_version() : -1) + " ";
  }
  return versions;
}

// -- a call of a function ------------------------------------------------------------------------

Capture::Capture(std::shared_ptr<CapturedPaths> paths, py::object tracer)
    : paths_(std::move(paths)), tracer_(std::move(tracer)) {
  no_amp_ = py::int_(0);
  begin();
  outer_ = std::exchange(capture_here, this);
}

Capture::~Capture() {
  stop_reading();
  capture_here = outer_;
}

Capture* Capture::here() { return capture_here; }

void Capture::begin() {
  // What is freed may call Python, which may call this again.
  const auto root = std::exchange(root_, paths_->root());
  path_ = root_.get();
  is_recording_ = false;
  for (const auto& value : values_) lazy_tensors().erase(value.ptr());
  const auto memory = stop_reading();
  const auto values = std::exchange(values_, {});
  is_made_.clear();
  forgotten_.clear();
  numbers_.clear();
}

// From now on, whoever writes this memory has the capture computed first.
void Capture::read(PyObject* tensor) {
  const phi::DenseTensor* const dense = plain_tensor(tensor);
  auto& captures = readers()[dense->Holder().get()];
  if (std::find(captures.begin(), captures.end(), this) != captures.end()) return;
  captures.push_back(this);
  read_.push_back(dense->Holder().get());
  held_.push_back(std::make_unique<const Holding>(std::vector<const phi::DenseTensor*>{dense}));
}

std::vector<std::unique_ptr<const Holding>> Capture::stop_reading() {
  for (const auto* memory : read_) {
    const auto found = readers().find(memory);
    auto& captures = found->second;
    captures.erase(std::find(captures.begin(), captures.end(), this));
    if (captures.empty()) readers().erase(found);
  }
  read_.clear();
  return std::exchange(held_, {});
}

bool Capture::has_gradient() const { return get_flag(tracer_.ptr(), "_has_grad"); }

bool Capture::may_capture(bool has_gradient) const {
  if (has_gradient && !paths_->trains()) return false;
  if (kept_tensors_are_seen || !is_dynamic_ || values_.size() > kLongestPath) return false;
  return py::int_(tracer_.attr("_amp_level")).equal(no_amp_);
}

int Capture::number_of(PyObject* tensor) const {
  const auto found = numbers_.find(tensor);
  if (found != numbers_.end()) return found->second;
  const auto added = std::find(new_values_.begin(), new_values_.end(), tensor);
  if (added == new_values_.end()) return -1;
  return static_cast<int>(values_.size() + (added - new_values_.begin()));
}

void Capture::add(PyObject* tensor, bool is_made) {
  numbers_.emplace(tensor, static_cast<int>(values_.size()));
  is_made_.push_back(is_made);
  values_.push_back(py::reinterpret_borrow<py::object>(tensor));
}

// Another thread may be computing what waits here: it may then be done. Returns false, with
// Python's error, if it is this thread that computes.
bool Capture::wait() const {
  while (is_computing_) {
    if (computing_ == std::this_thread::get_id()) {
      PyErr_SetString(PyExc_RuntimeError, "the tensor is being computed by this thread");
      return false;
    }
    const py::gil_scoped_release released;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

void Capture::forget_other_thread() {
  if (computing_ != std::this_thread::get_id()) is_computing_ = false;
}

bool Capture::settle_for_other() {
  if (is_computing_) {
    if (computing_ == std::this_thread::get_id()) return wait();
    const py::gil_scoped_release released;  // who sleeps here may find it gone
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    return true;
  }
  return compute();
}

// The arguments of a call, with the object of a method.
static std::vector<PyObject*> arguments_of(const AnnouncedFunction& function, PyObject* self,
                                           PyObject* args, PyObject* kwargs) {
  std::vector<PyObject*> arguments;
  if (function.is_method) arguments.push_back(self);
  const std::vector<PyObject*> positional = members(args);
  arguments.insert(arguments.end(), positional.begin(), positional.end());
  if (kwargs == nullptr) return arguments;
  PyObject *key, *value;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) arguments.push_back(value);
  return arguments;
}

// Such as the batches that processes of a DataLoader pass on in shared memory. Nobody has the copy
// but the call: the next one that is given the tensor gets another.
static bool is_worth_a_copy(PyObject* object) {
  constexpr size_t kMostBytes = size_t{64} << 20;
  if (!is_tensor(object) || is_lazy(object)) return false;
  const phi::DenseTensor* tensor = plain_tensor(object);
  if (tensor == nullptr || !is_plain(*tensor) || !is_known_outside(*tensor)) return false;
  return tensor->meta().is_contiguous() && num_bytes(*tensor) <= kMostBytes &&
         Py_TYPE(object)->tp_base == &PyBaseObject_Type && stops_gradient(object);
}

std::vector<PyObject*> Capture::kept_arguments(const AnnouncedFunction& function,
                                               const std::vector<PyObject*>& given,
                                               std::vector<py::object>* copies) const {
  std::vector<PyObject*> arguments;
  for (PyObject* argument : given) {
    if (!is_of_python(argument)) {
      const bool is_number = is_number_of_python(argument, function, given[0]);
      argument = kept(argument, function, is_number, copies);
    }
    const auto& lists = function.rule.lists;
    if (std::find(lists.begin(), lists.end(), arguments.size()) != lists.end()) {
      if (auto list = known_list(argument)) {
        copies->push_back(std::move(*list));
        argument = copies->back().ptr();
      }
    }
    arguments.push_back(argument);
  }
  return arguments;
}

// The numbers of a shape, or the like, that is a tensor and known, or a list with such tensors.
std::optional<py::list> Capture::known_list(PyObject* argument) const {
  py::list numbers;
  if (is_tensor(argument)) {
    if (add_numbers(argument, &numbers)) return numbers;
    return {};
  }
  if (!PyList_Check(argument) && !PyTuple_Check(argument)) return {};
  const std::vector<PyObject*> given = members(argument);
  if (std::none_of(given.begin(), given.end(), is_tensor)) return {};
  for (PyObject* member : given) {
    if (!is_tensor(member)) {
      numbers.append(py::handle(member));
    } else if (tensor_of(member).numel() != 1 || !add_numbers(member, &numbers)) {
      return {};
    }
  }
  return numbers;
}

bool Capture::add_numbers(PyObject* tensor, py::list* numbers) const {
  constexpr int64_t kMost = 64;
  const phi::DenseTensor* memory = waits(tensor) ? nullptr : plain_tensor(tensor);
  if (memory == nullptr || memory->dims().size() > 1 || memory->numel() > kMost) return false;
  if (!memory->meta().is_contiguous()) return false;
  for (int64_t i = 0; i < memory->numel(); ++i) {
    if (memory->dtype() == phi::DataType::INT64) {
      numbers->append(memory->data<int64_t>()[i]);
    } else if (memory->dtype() == phi::DataType::INT32) {
      numbers->append(memory->data<int32_t>()[i]);
    } else {
      return false;
    }
  }
  return true;
}

PyObject* Capture::kept(PyObject* argument, const AnnouncedFunction& function, bool is_number,
                        std::vector<py::object>* copies, int depth) const {
  constexpr int kDeepest = 4;
  const auto keep = [copies](py::object made) {
    copies->push_back(std::move(made));
    return copies->back().ptr();
  };
  if (is_number) return keep(python_number(argument));
  if (is_tensor(argument)) {
    if (numbers_.count(argument) > 0 || !is_worth_a_copy(argument)) return argument;
    const auto copy = tensor_of(argument).copy_to(phi::CPUPlace(), true);
    return keep(py::reinterpret_steal<py::object>(new_python_tensor(copy)));
  }
  if (has_items(argument) && depth <= kDeepest) {
    const std::vector<PyObject*> given = members(argument);
    if (std::all_of(given.begin(), given.end(), is_of_python)) return argument;
    std::vector<PyObject*> items;
    for (PyObject* member : given) {
      const bool is_item = is_numpy_number(member, true) || is_numpy_number(member, false);
      items.push_back(kept(member, function, is_item, copies, depth + 1));
    }
    if (items == given) return argument;
    if (is_slice(argument)) {
      return keep(py::reinterpret_steal<py::object>(PySlice_New(items[0], items[1], items[2])));
    }
    py::list made;
    for (PyObject* item : items) made.append(py::handle(item));
    return keep(PyTuple_Check(argument) ? py::object(py::tuple(made)) : py::object(made));
  }
  constexpr int kMostDimensions = 8;
  if (function.rule.values.kind == ValueRule::Kind::kIndex) {
    if (!is_array_of_numbers(argument, 0, kMostDimensions)) return argument;
    const NoCapture none;
    return keep(imported("paddle").attr("to_tensor")(py::handle(argument)));
  }
  // Paddle takes an array for a list, but one without dimensions not for a number.
  const bool is_list = !function.rule.is_arithmetic && is_array_of_numbers(argument, 1, 1);
  return is_list ? keep(py::handle(argument).attr("tolist")()) : argument;
}

bool Capture::waits(PyObject* tensor) const {
  if (is_lazy(tensor)) return true;
  if (!is_recording_) return false;
  const auto found = numbers_.find(tensor);
  return found != numbers_.end() && is_made_[found->second];
}

// Whether there are tensors among the arguments, and all are of whole numbers that are known. What
// is made of these (places, masks, lengths) is computed at once, for lookups have to know it.
bool Capture::is_given_numbers(PyObject* args, PyObject* self) const {
  bool has_tensor = false, has_other = false;
  const auto look = [&](PyObject* object) {
    has_tensor = true;
    const auto& tensor = tensor_of(object);
    has_other = has_other || waits(object) || !tensor.defined() || !is_whole_number(tensor.dtype());
  };
  const bool is_seen = visit_tensors(args, look) && (self == nullptr || visit_tensors(self, look));
  return is_seen && has_tensor && !has_other;
}

// -- whole numbers that wait ---------------------------------------------------------------------

bool Capture::has_values(const ValueRule& rule, const std::vector<PyObject*>& given) const {
  if (rule.kind == ValueRule::Kind::kNone) return true;
  const auto known = [this](PyObject* tensor) {
    return waits(tensor) ? nullptr : plain_tensor(tensor);
  };
  Ranges ranges;
  const auto range = [&](PyObject* tensor, int64_t column,
                         int64_t columns) -> std::optional<NumberRange> {
    if (!waits(tensor)) return {};
    return range_of_column(number_of(tensor), column, columns, &ranges);
  };
  return paddle_ngraph::has_values(rule, given, known, range);
}

std::optional<NumberRange> Capture::range_of(int number, Ranges* known) const {
  if (number < 0 || number >= static_cast<int>(values_.size())) return {};  // of another thread
  const auto found = known->find(number);
  if (found != known->end()) return found->second;
  std::optional<NumberRange> range;
  if (is_made_[number]) {
    const auto dtype = known_kind(number).dtype;
    if (dtype == phi::DataType::BOOL) {
      range = NumberRange{0, 1};
    } else if (dtype == phi::DataType::INT64 || dtype == phi::DataType::INT32) {
      range = range_of_made(call_of(number), number, known);
    }
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (range && (range->most > kMost || range->least < -kMost)) range.reset();
  } else if (values_[number]) {
    const phi::DenseTensor* tensor = plain_tensor(values_[number].ptr());
    if (tensor != nullptr) range = range_of_numbers(*tensor);
  } else if (const auto before = forgotten_.find(number); before != forgotten_.end()) {
    range = before->second;
  }
  return known->emplace(number, range).first->second;
}

// What an argument is, by its place or name; null if it is not given.
static const Argument* argument_of(const CapturedCall& call, size_t at, const char* name) {
  const size_t first_keyword = call.arguments.size() - call.keywords.size();
  if (at < first_keyword) return &call.arguments[at];
  for (size_t i = 0; i < call.keywords.size(); ++i) {
    if (call.keywords[i].equal(py::str(name))) return &call.arguments[first_keyword + i];
  }
  return nullptr;
}

// Of places whose columns were stacked, each column is known by itself.
std::optional<NumberRange> Capture::range_of_column(int number, int64_t column, int64_t columns,
                                                    Ranges* known) const {
  if (number >= 0 && number < static_cast<int>(values_.size()) && is_made_[number]) {
    const CapturedCall& call = call_of(number);
    const bool is_stacked = call.function->rule.numbers.kind == NumberRule::Kind::kStacked &&
                            call.arguments[0].kind == Argument::Kind::kItems &&
                            static_cast<int64_t>(call.arguments[0].items.size()) == columns;
    const Argument* const axis = argument_of(call, 1, "axis");
    if (is_stacked && axis != nullptr && axis->kind == Argument::Kind::kConstant &&
        PyLong_CheckExact(axis->constant.ptr())) {
      const int64_t at = PyLong_AsLongLong(axis->constant.ptr());
      const int last = known_kind(number).shape.size() - 1;
      if (at == -1 || at == last) return range_of(call.arguments[0].items[column], known);
    }
  }
  return range_of(number, known);
}

std::optional<NumberRange> Capture::range_of(const Argument& argument, Ranges* known) const {
  if (argument.kind == Argument::Kind::kValue) return range_of(argument.value, known);
  if (argument.kind == Argument::Kind::kConstant && PyLong_CheckExact(argument.constant.ptr())) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(argument.constant.ptr(), &overflow);
    return overflow == 0 ? std::optional(NumberRange{number, number}) : std::nullopt;
  }
  if (argument.kind != Argument::Kind::kItems || argument.items.empty()) return {};
  std::optional<NumberRange> all;
  for (const Argument& item : argument.items) {
    const auto range = range_of(item, known);
    if (!range) return {};
    all = all ? united(*all, *range) : *range;
  }
  return all;
}

std::optional<NumberRange> Capture::range_of_made(const CapturedCall& call, int number,
                                                  Ranges* known) const {
  using Kind = NumberRule::Kind;
  const NumberRule& rule = call.function->rule.numbers;
  const auto of = [&](size_t at) -> std::optional<NumberRange> {
    if (at >= call.arguments.size() - call.keywords.size()) return {};
    return range_of(call.arguments[at], known);
  };
  const bool is_place =
      rule.kind == Kind::kPlaces || (rule.kind == Kind::kSorted && number > call.first_result);
  if (is_place) {
    if (call.arguments.empty() || call.arguments[0].kind != Argument::Kind::kValue) return {};
    const phi::DDim& dims = known_kind(call.arguments[0].value).shape;
    int64_t end = phi::product(dims);
    const Argument* const axis = argument_of(call, rule.axis_at, "axis");
    const Argument* const flat = argument_of(call, 3, "flatten");
    const bool is_flat =
        rule.kind == Kind::kPlaces && flat != nullptr && flat->constant.ptr() == Py_True;
    const bool has_axis = axis != nullptr && axis->kind == Argument::Kind::kConstant &&
                          PyLong_CheckExact(axis->constant.ptr());
    if (has_axis && !is_flat && dims.size() > 0) {
      const int64_t at = PyLong_AsLongLong(axis->constant.ptr()) + dims.size();
      end = dims[static_cast<int>(at % dims.size())];
    }
    return NumberRange{0, end - 1};
  }
  if (rule.kind == Kind::kSorted || rule.kind == Kind::kStacked) return of(0);
  if (rule.kind == Kind::kMoved) {
    std::optional<NumberRange> all;
    for (const size_t at : rule.of) {
      const auto range = of(at);
      if (!range) return {};
      all = all ? united(*all, *range) : *range;
    }
    return all;
  }
  if (rule.kind == Kind::kClipped) {
    const auto least = of(1), most = of(2);
    auto range = of(0);
    if (!range) {
      if (!least || !most) return {};
      return NumberRange{least->least, std::max(least->most, most->most)};
    }
    if (least) range->least = std::max(range->least, least->least);
    if (least) range->most = std::max(range->most, least->most);
    if (most) range->most = std::min(range->most, most->most);
    if (most) range->least = std::min(range->least, most->least);
    return range;
  }
  const auto one = of(0), other = of(1);
  return one && other ? combined(rule.kind, *one, *other) : std::nullopt;
}

// -- a call of an operator -----------------------------------------------------------------------

// Whether the results of a call would share the memory of a copy, where the user expects that of
// the tensor that was copied.
bool Capture::shares_any(const CapturedCall& call, const std::vector<py::object>& copies) const {
  return std::any_of(call.views.begin(), call.views.end(), [&](const auto& view) {
    const auto given = static_cast<size_t>(view.second);
    if (given < values_.size()) return false;
    PyObject* tensor = new_values_[given - values_.size()];
    return std::any_of(copies.begin(), copies.end(),
                       [&](const py::object& copy) { return copy.ptr() == tensor; });
  });
}

// Whether keyword arguments have these names, in this order.
static bool has_keywords(const std::vector<py::str>& keywords, PyObject* kwargs) {
  const size_t number = kwargs == nullptr ? 0 : PyDict_GET_SIZE(kwargs);
  if (number != keywords.size()) return false;
  if (number == 0) return true;
  PyObject *key, *value;
  size_t next = 0;
  for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) {
    if (!keywords[next++].equal(py::handle(key))) return false;
  }
  return true;
}

PyObject* Capture::call(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                        PyObject* kwargs) {
  if (!wait()) return nullptr;
  if (function.rule.changes != Changes::kNothing) {
    return call_changing(function, self, args, kwargs);
  }
  const bool gradient = has_gradient();
  if (!may_capture(gradient)) return call_natively(function, self, args, kwargs);
  if (!function.rule.draws && is_given_sizes({self, args, kwargs})) {
    return call_for_sizes(function, self, args, kwargs);
  }
  if (is_given_numbers(args, function.is_method ? self : nullptr) &&
      !does_any_wait(nullptr, kwargs)) {
    const NoCapture none;
    return call_now(function, self, args, kwargs);
  }
  std::vector<py::object> copies;
  const std::vector<PyObject*> given =
      kept_arguments(function, arguments_of(function, self, args, kwargs), &copies);
  if (!has_values(function.rule.values, given)) {
    return call_natively(function, self, args, kwargs);
  }
  if (CapturedPath* next = find_next(function, gradient, given, kwargs)) {
    if (shares_any(next->call, copies)) return call_natively(function, self, args, kwargs);
    for (PyObject* tensor : new_values_) {
      add(tensor, false);
      if (!is_recording_) read(tensor);
    }
    path_ = next;
    return is_recording_ ? follow(*next, self, args, kwargs) : defer(*next);
  }
  if (!is_recording_) {
    if (!compute()) {
      const py::error_scope kept;
      begin();
      return nullptr;
    }
  }
  return record(function, gradient, given, self, args, kwargs);
}

PyObject* Capture::call_natively(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                                 PyObject* kwargs) {
  const bool may_write = function.rule.changes != Changes::kNothing;
  if (!settle(function.name) || !settle_foreign(self, args, kwargs, may_write)) return nullptr;
  const NoCapture none;
  return call_now(function, self, args, kwargs);
}

bool Capture::is_given_sizes(const std::array<PyObject*, 3>& arguments) const {
  bool has_sizes = false;
  const auto find_other = [&](PyObject* argument) -> PyObject* {
    if (!is_tensor(argument)) return nullptr;
    if (sizes_.count(argument) == 0) return argument;
    has_sizes = true;
    return nullptr;
  };
  for (PyObject* argument : arguments) {
    if (find_any(find_other, argument) != nullptr) return false;
  }
  return has_sizes;
}

bool Capture::is_given_known(const std::array<PyObject*, 3>& arguments, bool shows_memory) const {
  const auto find_other = [&](PyObject* argument) -> PyObject* {
    if (!is_tensor(argument)) return nullptr;
    return waits(argument) || error_of(argument) != nullptr ? argument : nullptr;
  };
  for (PyObject* argument : arguments) {
    if (find_any(find_other, argument) != nullptr) return false;
  }
  return !shows_memory || owner_of(arguments, true) == nullptr;
}

// What is returned may be a way to write the memory.
bool Capture::may_show(const std::array<PyObject*, 3>& arguments) const {
  return is_given_sizes(arguments) && owner_of(arguments, true) == nullptr;
}

// What waits may be computed meanwhile, in another thread.
static py::object stand_in(PyObject* argument) {
  if (!is_tensor(argument) || !is_lazy(argument)) {
    return py::reinterpret_borrow<py::object>(argument);
  }
  const auto& tensor = tensor_of(argument);
  return make_tensor({tensor.dtype(), tensor.dims()}, true);
}

PyObject* Capture::call_for_sizes(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                                  PyObject* kwargs) {
  constexpr size_t kMostSizes = 4096;
  py::list given;
  for (PyObject* argument : members(args)) given.append(stand_in(argument));
  const py::tuple shapes(given);
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, shapes.ptr(), kwargs));
  if (!result) return nullptr;
  const auto freed = sizes_.size() < kMostSizes ? decltype(sizes_)() : std::exchange(sizes_, {});
  const auto keep = [this](PyObject* object) -> PyObject* {
    if (is_tensor(object)) {
      sizes_.emplace(object, py::reinterpret_borrow<py::object>(object));
    }
    return nullptr;
  };
  find_any(keep, result.ptr());
  return result.release().ptr();
}

CapturedPath* Capture::find_next(const AnnouncedFunction& function, bool has_gradient,
                                 const std::vector<PyObject*>& given, PyObject* kwargs) {
  for (const auto& next : path_->next) {
    const CapturedCall& call = next->call;
    if (call.function != &function || call.has_gradient != has_gradient ||
        call.arguments.size() != given.size() || !has_keywords(call.keywords, kwargs)) {
      continue;
    }
    new_values_.clear();
    bool is_same = true;
    for (size_t i = 0; is_same && i < given.size(); ++i) {
      is_same = matches(call.arguments[i], given[i], call);
    }
    if (is_same) return next.get();
  }
  new_values_.clear();
  return nullptr;
}

bool Capture::matches(const Argument& expected, PyObject* given, const CapturedCall& call) {
  switch (expected.kind) {
    case Argument::Kind::kValue:
      return is_tensor(given) && matches_value(expected, given, call);
    case Argument::Kind::kConstant:
      return equals_constant(expected, given);
    case Argument::Kind::kNothing:
      return has_nothing(given);
    case Argument::Kind::kItems:
      break;
  }
  if (!has_items(given) || type_of_items(given) != expected.type) return false;
  const std::vector<PyObject*> items = members(given);
  if (items.size() != expected.items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!matches(expected.items[i], items[i], call)) return false;
  }
  return true;
}

bool Capture::matches_value(const Argument& expected, PyObject* given, const CapturedCall& call) {
  const int number = number_of(given);
  if (number >= 0) return number == expected.value;
  const int next = static_cast<int>(values_.size() + new_values_.size());
  if (expected.value != next || next >= call.first_result) return false;
  const ValueKind& known = call.kinds[next - call.first_value];
  if (tensor_of(given).dims() != known.shape) return false;  // soon: there may be many sizes
  const auto kind = kind_of(given);
  if (!kind || !(*kind == known)) return false;
  new_values_.push_back(given);
  return true;
}

// -- calls that wait -----------------------------------------------------------------------------

PyObject* Capture::defer(CapturedPath& path) {
  return make_lazy(path.call.result, path.call).release().ptr();
}

py::object Capture::make_lazy(const Argument& result, const CapturedCall& call) {
  if (result.kind == Argument::Kind::kConstant) return result.constant;
  if (result.kind == Argument::Kind::kNothing) {
    if (result.empty) return make_tensor(*result.empty, result.stop_gradient);
    return py::reinterpret_steal<py::object>(new_python_tensor(paddle::Tensor()));
  }
  if (result.kind == Argument::Kind::kItems) {
    py::list items;
    for (const Argument& item : result.items) items.append(make_lazy(item, call));
    return result.type == &PyTuple_Type ? py::object(py::tuple(items)) : py::object(items);
  }
  const ValueKind& kind = call.kinds[result.value - call.first_value];
  auto lazy = make_tensor({kind.dtype, kind.shape}, kind.stop_gradient);
  add(lazy.ptr(), true);
  lazy_tensors().emplace(lazy.ptr(), this);
  return lazy;
}

bool Capture::settle(const std::string& reason) {
  if (!wait()) return false;
  if (path_ == root_.get()) {
    if (is_recording_) begin();
    return true;
  }
  if (path_->breaks.empty()) paths_->add_end(*root_, *path_);
  if (path_->breaks.count(reason) == 0) path_->breaks.emplace(reason, line_of_user(reason));
  const bool is_done = is_recording_ || compute();
  const py::error_scope kept;
  begin();
  return is_done;
}

std::vector<CapturedPath*> Capture::path() const { return calls_until(path_); }

// Somebody besides this object has a reference to them.
std::vector<int> Capture::wanted() const {
  std::vector<int> numbers;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (Py_REFCNT(values_[i].ptr()) > 1 && is_lazy(values_[i].ptr())) {
      numbers.push_back(static_cast<int>(i));
    }
  }
  return numbers;
}

bool Capture::compute() {
  if (path_ == root_.get()) is_recording_ = true;
  if (is_recording_) return true;
  const NoCapture none;
  const NoCollection no_collection;
  is_computing_ = true;
  computing_ = std::this_thread::get_id();
  std::string error;
  py::object type, value, trace;
  try {
    compute_wanted();
  } catch (py::error_already_set& raised) {
    error = raised.what();
    type = raised.type(), value = raised.value(), trace = raised.trace();
  } catch (const std::exception& raised) {
    error = raised.what();
    type = py::reinterpret_borrow<py::object>(PyExc_RuntimeError), value = py::str(error);
  }
  for (const auto& tensor : values_) {
    if (!error.empty() && is_lazy(tensor.ptr()) && has_nothing(tensor.ptr(), true)) {
      failed_tensors().emplace(tensor.ptr(), error);
      tensor.inc_ref();
    }
    lazy_tensors().erase(tensor.ptr());
  }
  const auto memory = stop_reading();
  is_recording_ = true;
  is_computing_ =
      false;  // another thread may end the capture as soon as this one lets go of Python
  if (error.empty()) return true;
  PyErr_Restore(type.release().ptr(), value.release().ptr(), trace.release().ptr());
  return false;
}

// Whether a graph of these values may serve again. What is wanted may differ from call to call, so
// only the first graph of a path is made at once.
bool Capture::has_recurred(const std::vector<int>& wanted) {
  constexpr size_t kMostSets = 256;
  if (path_->graphs.empty() || path_->wanted.erase(wanted) > 0) return true;
  if (path_->wanted.size() == kMostSets) path_->wanted.clear();
  path_->wanted.insert(wanted);
  return false;
}

// Throws what Python raises. If a graph raises, nothing of it is there: its operators are called.
void Capture::compute_wanted() {
  const std::vector<int> numbers = wanted();
  std::unique_ptr<py::error_already_set> raised;
  py::object graph;  // another thread may forget it meanwhile
  try {
    const auto found = path_->graphs.find(numbers);
    if (found != path_->graphs.end()) {
      graph = found->second;
    } else if (!path_->breaks.empty() && !numbers.empty()) {
      graph = find_or_make_graph(numbers);
      if (graph) path_->graphs.emplace(numbers, graph);
    }
    if (graph && !graph.is_none() && compute_graph(graph, numbers)) return;
  } catch (py::error_already_set& error) {
    const bool is_open = graph && !graph.is_none() && graph.attr("is_open").cast<bool>();
    if (is_open && error.matches(PyExc_Exception)) {
      close_family(numbers);
    } else {
      raised = std::make_unique<py::error_already_set>(error);
    }
  }
  if (!compute_one_by_one()) throw py::error_already_set();
  if (raised != nullptr) throw py::error_already_set(*raised);
}

namespace {

// A tensor that waited gets what was computed. It keeps its name, if it was asked for; else it has
// this one, not that of a program's output, which each call would give to another tensor.
void become(paddle::Tensor* waited, const paddle::Tensor& result, const std::string& name) {
  const std::string known = waited->name();
  *waited = result;
  waited->set_name(known.empty() ? name : known);
}

}  // namespace

// That of a pattern, or one of the path alone; null if there is none yet.
py::object Capture::find_or_make_graph(const std::vector<int>& wanted) {
  const auto pattern = paths_->pattern_of(*path_);  // others may forget it meanwhile
  if (pattern != nullptr) {
    const auto found = pattern->graphs.find(wanted);
    if (found != pattern->graphs.end()) return found->second;
  }
  if (!has_recurred(wanted)) return {};
  py::object graph = make_graph(wanted, pattern == nullptr ? nullptr : &pattern->shapes);
  if (pattern != nullptr) pattern->graphs.emplace(wanted, graph);
  paths_->count_graph();
  return graph;
}

// Whether what a graph has computed has the shapes that these values are known by.
bool Capture::have_shapes(const py::list& results, const std::vector<int>& wanted) const {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const py::object result = results[i];
    if (tensor_of(result.ptr()).dims() != tensor_of(values_[wanted[i]].ptr()).dims()) return false;
  }
  return true;
}

// Returns false if it computed nothing.
bool Capture::compute_graph(const py::object& graph, const std::vector<int>& wanted) {
  py::list given;
  for (const auto& value : values_) given.append(is_lazy(value.ptr()) ? py::none() : value);
  const py::object computed = graph(given);
  const bool is_open = graph.attr("is_open").cast<bool>();
  if (is_open && !(computed.is_none() ? graph.attr("why_native").is_none()
                                      : have_shapes(py::list(computed), wanted))) {
    close_family(wanted);
    return false;
  }
  if (computed.is_none()) return false;
  const py::list results(computed);
  for (size_t i = 0; i < wanted.size(); ++i) {
    become(&tensor_of(values_[wanted[i]].ptr()), tensor_of(results[i].ptr()), "");
  }
  return true;
}

// Has each path its own graph: with known sizes it may do better.
void Capture::close_family(const std::vector<int>& wanted) {
  paths_->close_family(*path_);
  path_->graphs.erase(wanted);
}

bool Capture::compute_one_by_one() {
  const bool before = has_gradient();
  bool is_done = true;
  for (const CapturedPath* each : path()) {
    const CapturedCall& call = each->call;
    tracer_.attr("_has_grad") = call.has_gradient;
    py::list arguments;
    for (const Argument& of : call.arguments) arguments.append(argument(of));
    py::object self;
    py::list positional;
    py::dict kwargs;
    const size_t first_keyword = arguments.size() - call.keywords.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (i == 0 && call.function->is_method) {
        self = arguments[i];
      } else if (i < first_keyword) {
        positional.append(arguments[i]);
      } else {
        kwargs[call.keywords[i - first_keyword]] = arguments[i];
      }
    }
    const py::tuple args(positional);
    const auto computed = py::reinterpret_steal<py::object>(
        call_now(*call.function, self.ptr(), args.ptr(), kwargs.empty() ? nullptr : kwargs.ptr()));
    is_done = static_cast<bool>(computed);
    if (!is_done) break;
    const bool is_changed = call.function->rule.changes != Changes::kNothing;
    assign(call.result, is_changed ? self.ptr() : computed.ptr());
  }
  const py::error_scope kept;
  tracer_.attr("_has_grad") = before;
  return is_done;
}

// Gives the tensors that wait what was computed for them.
void Capture::assign(const Argument& expected, PyObject* computed) {
  if (expected.kind == Argument::Kind::kConstant || expected.kind == Argument::Kind::kNothing) {
    return;
  }
  if (expected.kind == Argument::Kind::kValue) {
    const paddle::Tensor& result = tensor_of(computed);
    become(&tensor_of(values_[expected.value].ptr()), result, result.name());
    return;
  }
  const std::vector<PyObject*> items = members(computed);
  for (size_t i = 0; i < expected.items.size(); ++i) assign(expected.items[i], items[i]);
}

namespace {

// An argument or a result as Python has it. What stands for its tensors, and for one without
// memory, is said by functions.
template <typename OfValue, typename OfNothing>
py::object with_values(const Argument& argument, const OfValue& of_value,
                       const OfNothing& of_nothing) {
  if (argument.kind == Argument::Kind::kValue) return of_value(argument.value);
  if (argument.kind == Argument::Kind::kConstant) return argument.constant;
  if (argument.kind == Argument::Kind::kNothing) return of_nothing();
  py::list items;
  for (const Argument& item : argument.items) {
    items.append(with_values(item, of_value, of_nothing));
  }
  if (argument.type == &PyList_Type) return items;
  if (argument.type == &PySlice_Type) {
    return py::reinterpret_steal<py::object>(PySlice_New(
        py::object(items[0]).ptr(), py::object(items[1]).ptr(), py::object(items[2]).ptr()));
  }
  return py::tuple(items);
}

py::object described(const Argument& argument) {
  return with_values(
      argument, [](int value) { return py::cast(CapturedValue{value}); },
      [] { return py::none(); });
}

py::object tensor_without_memory() {
  const paddle::Tensor made(std::make_shared<phi::DenseTensor>());
  return py::reinterpret_steal<py::object>(new_python_tensor(made));
}

}  // namespace

py::object Capture::argument(const Argument& of) const {
  return with_values(of, [this](int value) { return values_[value]; }, tensor_without_memory);
}

// -- calls that are recorded ---------------------------------------------------------------------

// The calls of functions, but not what they are given.
static size_t family_of(const CapturedPath& path) {
  const size_t number = std::hash<const void*>()(path.call.function) + path.call.kinds.size();
  const size_t before = path.previous->family;
  return before ^ (number + 0x9e3779b97f4a7c15 + (before << 6) + (before >> 2));
}

// A call that is known, after one that was not.
PyObject* Capture::follow(CapturedPath& path, PyObject* self, PyObject* args, PyObject* kwargs) {
  forget_unused();
  const NoCapture none;
  auto result =
      py::reinterpret_steal<py::object>(call_now(*path.call.function, self, args, kwargs));
  const bool is_same = result && recognize(path.call.result, result.ptr(), path.call);
  if (is_same) return result.release().ptr();
  const py::error_scope kept;
  begin();
  return result.release().ptr();
}

// What is computed already and only this object has would be free without it.
void Capture::forget_unused() {
  std::vector<py::object> unused;  // freed last: that may call Python, which may call this again
  for (auto& value : values_) {
    if (!value || Py_REFCNT(value.ptr()) > 1) continue;
    numbers_.erase(value.ptr());
    const auto number = static_cast<int>(&value - values_.data());
    const phi::DenseTensor* tensor = is_made_[number] ? nullptr : plain_tensor(value.ptr());
    if (tensor != nullptr) forgotten_.emplace(number, range_of_numbers(*tensor));
    unused.push_back(std::move(value));
  }
}

// Adds the tensors of a result; returns false if they are of another kind than before.
bool Capture::recognize(const Argument& expected, PyObject* result, const CapturedCall& call) {
  if (expected.kind == Argument::Kind::kConstant) return expected.constant.ptr() == result;
  if (expected.kind == Argument::Kind::kNothing) return has_nothing(result);
  if (expected.kind == Argument::Kind::kValue) {
    if (!is_tensor(result) || number_of(result) >= 0) return false;
    const auto kind = kind_of(result);
    if (!kind || !(*kind == call.kinds[expected.value - call.first_value])) return false;
    add(result, true);
    return true;
  }
  if (Py_TYPE(result) != expected.type) return false;
  const std::vector<PyObject*> items = members(result);
  if (items.size() != expected.items.size()) return false;
  for (size_t i = 0; i < items.size(); ++i) {
    if (!recognize(expected.items[i], items[i], call)) return false;
  }
  return true;
}

PyObject* Capture::record(const AnnouncedFunction& function, bool has_gradient,
                          const std::vector<PyObject*>& given, PyObject* self, PyObject* args,
                          PyObject* kwargs) {
  forget_unused();
  auto call = describe_call(function, given, kwargs);
  if (!call && !(settle(function.name) && settle_foreign(self, args, kwargs, false)))
    return nullptr;
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  if (!result) {
    const py::error_scope kept;
    settle(function.name);
    return nullptr;
  }
  if (!call) return result.release().ptr();
  for (PyObject* tensor : new_values_) add(tensor, false);
  call->has_gradient = has_gradient;
  call->first_result = static_cast<int>(values_.size());
  new_values_.clear();
  if (!describe_result(result.ptr(), *call, call->result)) {
    settle(function.name);
    return result.release().ptr();
  }
  for (PyObject* tensor : new_values_) add(tensor, true);
  path_->next.push_back(std::make_unique<CapturedPath>(path_));
  path_ = path_->next.back().get();
  path_->call = std::move(*call);
  path_->family = family_of(*path_);
  paths_->count_path();
  return result.release().ptr();
}

// A call that may wait next time, so far without its results.
std::optional<CapturedCall> Capture::describe_call(const AnnouncedFunction& function,
                                                   const std::vector<PyObject*>& given,
                                                   PyObject* kwargs) {
  CapturedCall call;
  call.function = &function;
  call.first_value = static_cast<int>(values_.size());
  new_values_.clear();
  for (PyObject* each : given) {
    const bool may_be_tensor = call.arguments.size() < function.rule.most_tensors;
    const bool is_unread = static_cast<int>(call.arguments.size()) == function.rule.unread;
    Argument found;
    if (is_unread && has_nothing(each)) {
      found.kind = Argument::Kind::kNothing;
    } else if (!describe(each, may_be_tensor, call, found)) {
      return std::nullopt;
    }
    call.arguments.push_back(std::move(found));
  }
  if (kwargs != nullptr) {
    const bool needs_some = !function.rule.needed.empty() || !function.rule.needed_to_train.empty();
    if (PyDict_GET_SIZE(kwargs) > 0 && needs_some) return std::nullopt;
    PyObject *key, *value;
    for (Py_ssize_t at = 0; PyDict_Next(kwargs, &at, &key, &value) != 0;) {
      call.keywords.push_back(py::reinterpret_borrow<py::str>(key));
    }
  }
  if (!may_wait(call)) return std::nullopt;
  return call;
}

// Returns false if a call with it cannot wait.
bool Capture::describe(PyObject* given, bool may_be_tensor, CapturedCall& call, Argument& found,
                       int depth) {
  constexpr int kDeepest = 4;
  if (depth > kDeepest) return false;
  if (is_tensor(given)) {
    if (!may_be_tensor) return false;
    found.kind = Argument::Kind::kValue;
    found.value = number_of(given);
    if (found.value >= 0) return true;
    const auto kind = kind_of(given);
    if (!kind) return false;
    found.value = static_cast<int>(values_.size() + new_values_.size());
    call.kinds.push_back(*kind);
    new_values_.push_back(given);
    return true;
  }
  if (has_items(given)) {
    found.kind = Argument::Kind::kItems;
    found.type = type_of_items(given);
    if (found.type != &PyList_Type && found.type != &PyTuple_Type && found.type != &PySlice_Type) {
      return false;
    }
    for (PyObject* member : members(given)) {
      found.items.emplace_back();
      if (!describe(member, may_be_tensor, call, found.items.back(), depth + 1)) return false;
    }
    return true;
  }
  found.constant =
      is_other_number(given) ? python_number(given) : py::reinterpret_borrow<py::object>(given);
  found.is_any_of_type = is_cpu_place(given);
  return is_constant(found.constant.ptr());
}

// What its function asks for, see AnnouncedFunction.
bool Capture::may_wait(const CapturedCall& call) const {
  bool has_doubles = false, has_fine_numbers = false;
  for (const Argument& argument : call.arguments) {
    if (argument.kind == Argument::Kind::kValue) {
      const size_t number = argument.value;
      PyObject* tensor =
          number < values_.size() ? values_[number].ptr() : new_values_[number - values_.size()];
      has_doubles = has_doubles || tensor_of(tensor).dtype() == phi::DataType::FLOAT64;
    } else if (argument.kind == Argument::Kind::kConstant &&
               PyFloat_CheckExact(argument.constant.ptr())) {
      const double number = PyFloat_AS_DOUBLE(argument.constant.ptr());
      has_fine_numbers =
          has_fine_numbers || static_cast<double>(static_cast<float>(number)) != number;
    }
  }
  if (has_doubles && has_fine_numbers) return false;  // programs keep numbers in 32 bits
  const auto has = [&](const auto& needed) {
    return call.arguments.size() > needed.first &&
           call.arguments[needed.first].kind == Argument::Kind::kConstant &&
           call.arguments[needed.first].constant.equal(needed.second);
  };
  const WaitRule& rule = call.function->rule;
  if (!std::all_of(rule.needed.begin(), rule.needed.end(), has)) return false;
  if (has_gradient() &&
      !std::all_of(rule.needed_to_train.begin(), rule.needed_to_train.end(), has)) {
    return false;
  }
  if (!rule.needs_floats) return true;
  for (const Argument& argument : call.arguments) {
    if (argument.kind != Argument::Kind::kValue) continue;
    const PyObject* tensor = argument.value < static_cast<int>(values_.size())
                                 ? values_[argument.value].ptr()
                                 : new_values_[argument.value - values_.size()];
    const auto dtype = tensor_of(const_cast<PyObject*>(tensor)).dtype();
    if (dtype != phi::DataType::FLOAT32 && dtype != phi::DataType::FLOAT64) return false;
  }
  return true;
}

// Returns false if the call cannot wait next time: its results are no tensors of their own.
bool Capture::describe_result(PyObject* result, CapturedCall& call, Argument& found) {
  if (!is_tensor(result)) {
    if (result == Py_None) {
      found.constant = py::none();
      return true;
    }
    if (!PyList_CheckExact(result) && !PyTuple_CheckExact(result)) return false;
    found.kind = Argument::Kind::kItems;
    found.type = Py_TYPE(result);
    for (PyObject* member : members(result)) {
      found.items.emplace_back();
      if (!describe_result(member, call, found.items.back())) return false;
    }
    return true;
  }
  if (number_of(result) >= 0) return false;
  if (has_nothing(result)) {
    found.kind = Argument::Kind::kNothing;
    found.empty = empty_meta(result);
    found.stop_gradient = stops_gradient(result);
    // A gradient would pass through it, if only zeros.
    return !found.empty || found.stop_gradient || call.function->rule.has_reserve;
  }
  const auto kind = kind_of(result);
  if (!kind || get_flag(result, "persistable")) return false;  // a copy of a parameter
  found.kind = Argument::Kind::kValue;
  found.value = static_cast<int>(values_.size() + new_values_.size());
  const auto& memory = plain_tensor(result)->Holder();
  for (int i = 0; i < call.first_result; ++i) {
    const phi::DenseTensor* other = values_[i] ? plain_tensor(values_[i].ptr()) : nullptr;
    if (other != nullptr && other->Holder() == memory) call.views[found.value] = i;
  }
  call.kinds.push_back(*kind);
  new_values_.push_back(result);
  return true;
}

// -- calls that change a tensor ------------------------------------------------------------------
//
// The tensor is another value from then on. What calls before have read is the former value, which
// the user has no object of any more.

PyObject* Capture::call_changing(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                                 PyObject* kwargs) {
  const bool gradient = has_gradient();
  if (number_of(self) < 0 && may_write_now(function, self, args, kwargs)) {
    const NoCapture none;
    return call_now(function, self, args, kwargs);
  }
  if (!may_capture(gradient) || !may_change(function, self)) {
    return call_natively(function, self, args, kwargs);
  }
  std::vector<py::object> copies;
  const std::vector<PyObject*> given =
      kept_arguments(function, arguments_of(function, self, args, kwargs), &copies);
  if (!has_values(function.rule.values, given)) {
    return call_natively(function, self, args, kwargs);
  }
  if (is_recording_) forget_unused();
  CapturedPath* const next = find_next(function, gradient, given, kwargs);
  if (next == nullptr && !is_recording_ && !compute()) {
    const py::error_scope kept;
    begin();
    return nullptr;
  }
  if (is_recording_) return record_change(function, next, given, self, args, kwargs);
  for (PyObject* tensor : new_values_) {
    add(tensor, false);
    read(tensor);
  }
  path_ = next;
  defer_change(*next, self);
  Py_RETURN_NONE;
}

// Whether a call that writes has nothing to do with what waits: it writes what the user has made
// of what is known, and nobody reads that.
bool Capture::may_write_now(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                            PyObject* kwargs) const {
  return function.rule.changes == Changes::kNumbers && sizes_.count(self) == 0 &&
         is_given_known({self, args, kwargs}, false) &&
         owner_of({self, nullptr, nullptr}, true) == nullptr;
}

// Whether a tensor may be changed as part of the path: who else has its memory would see it
// written.
bool Capture::may_change(const AnnouncedFunction& function, PyObject* tensor) const {
  const int number = number_of(tensor);
  if (number < 0) return function.rule.changes == Changes::kNumbers && has_own_memory(tensor);
  if (!is_made_[number]) return false;
  if (function.rule.changes == Changes::kStopGradient) return true;
  // Written with what has a gradient, one that was told to stop it lets it pass again.
  if (call_of(number).function->rule.changes == Changes::kStopGradient) return false;
  const ValueKind& kind = known_kind(number);
  // With gradients off, autograd goes on to take the tensor for what it was.
  return kind.is_contiguous && (kind.stop_gradient || has_gradient()) && !is_shared(number);
}

void Capture::note_new(PyObject* result) {
  constexpr size_t kMost = 4096;
  if (result == nullptr || !is_tensor(result)) return;
  if (new_.size() == kMost) new_.clear();
  new_.insert_or_assign(result, tensor_of(result).impl());
}

// Whether a tensor that is known is one of this call, as zeros to be filled, and the only one with
// its memory. What is kept from call to call (a cache) may be written elsewhere each time, which
// would be another path, and be large.
bool Capture::has_own_memory(PyObject* tensor) const {
  const auto found = new_.find(tensor);
  if (found == new_.end() || found->second.lock() != tensor_of(tensor).impl()) return false;
  const auto kind = kind_of(tensor);
  if (!kind || !kind->stop_gradient || !kind->is_contiguous || kind->is_parameter) return false;
  const bool is_held_once =
      tensor_of(tensor).impl().use_count() == 1 && plain_tensor(tensor)->Holder().use_count() == 1;
  return is_held_once && sizes_.count(tensor) == 0 && !get_flag(tensor, "persistable");
}

// Whether the user may have another tensor with the memory of a value.
bool Capture::is_shared(int number) const {
  std::set<int> same{number};
  const std::vector<CapturedPath*> calls = path();
  for (size_t before = 0; before != same.size();) {
    before = same.size();
    for (const CapturedPath* each : calls) {
      for (const auto& [view, other] : each->call.views) {
        if (same.count(view) > 0 || same.count(other) > 0) same.insert({view, other});
      }
    }
  }
  return std::any_of(same.begin(), same.end(), [&](int each) {
    if (!is_made_[each]) return true;
    return each != number && values_[each] && Py_REFCNT(values_[each].ptr()) > 1;
  });
}

// Whether autograd takes a tensor for another one, as Paddle has it of x and x[:].
bool Capture::shares_gradient(PyObject* tensor) const {
  const auto* const own = tensor_of(tensor).get_autograd_meta();
  return own != nullptr && std::any_of(values_.begin(), values_.end(), [&](const py::object& each) {
           return each && each.ptr() != tensor && tensor_of(each.ptr()).get_autograd_meta() == own;
         });
}

// The call that a value was given to first, or made by.
const CapturedCall& Capture::call_of(int number) const {
  const CapturedPath* path = path_;
  while (path->call.first_value > number) path = path->previous;
  return path->call;
}

const ValueKind& Capture::known_kind(int number) const {
  const CapturedCall& call = call_of(number);
  return call.kinds[number - call.first_value];
}

void Capture::defer_change(const CapturedPath& path, PyObject* tensor) {
  paddle::Tensor& changed = tensor_of(tensor);
  auto other = make_tensor({changed.dtype(), changed.dims()}, stops_gradient(tensor));
  if (is_lazy(tensor)) {
    lazy_tensors().emplace(other.ptr(), this);
  } else {  // the memory is the former value's
    std::swap(changed, tensor_of(other.ptr()));
    changed.set_name(tensor_of(other.ptr()).name());
    lazy_tensors().emplace(tensor, this);
  }
  become_other_value(tensor, std::move(other));
  const bool stops = path.call.kinds.back().stop_gradient;
  if (stops != stops_gradient(tensor)) set_stop_gradient(tensor, stops);
}

// From now on a tensor is the next value, and `former` the one that it was, if that waits.
void Capture::become_other_value(PyObject* tensor, py::object former) {
  const int before = numbers_.at(tensor);
  numbers_.erase(tensor);
  if (former) numbers_.emplace(former.ptr(), before);
  const auto held = std::exchange(values_[before], std::move(former));
  add(tensor, true);
}

// Calls it, and notes that the path goes on so; `known`: as it does already.
PyObject* Capture::record_change(const AnnouncedFunction& function, CapturedPath* known,
                                 const std::vector<PyObject*>& given, PyObject* self,
                                 PyObject* args, PyObject* kwargs) {
  std::optional<CapturedCall> call;
  if (known == nullptr) {
    const bool is_own = function.rule.changes == Changes::kNumbers || !shares_gradient(self);
    if (is_own) call = describe_call(function, given, kwargs);
    if (!call && !(settle(function.name) && settle_foreign(self, args, kwargs, true))) {
      return nullptr;
    }
  }
  const std::vector<PyObject*> others = std::exchange(new_values_, {});
  const bool gradient = has_gradient();
  const int number = number_of(self);
  const NoCapture none;
  auto result = py::reinterpret_steal<py::object>(call_now(function, self, args, kwargs));
  if (known == nullptr && !call) return result.release().ptr();
  const auto kind = result ? kind_of(self) : std::nullopt;
  const bool is_known = known != nullptr && kind && *kind == known->call.kinds.back();
  const bool is_unseen = kind && !gradient && !kind->stop_gradient;  // by autograd, as above
  if (!kind || is_unseen || (known != nullptr && !is_known)) {
    const py::error_scope kept;
    settle(function.name);
    return result.release().ptr();
  }
  for (PyObject* tensor : others) add(tensor, false);
  if (known == nullptr) {
    call->has_gradient = gradient;
    call->first_result = static_cast<int>(values_.size());
    call->result.kind = Argument::Kind::kValue;
    call->result.value = call->first_result;
    call->kinds.push_back(*kind);
    // Where it is looked at, it keeps what it was computed by, for when the switch is off again.
    if (function.rule.changes == Changes::kStopGradient) call->views[call->first_result] = number;
    path_->next.push_back(std::make_unique<CapturedPath>(path_));
    known = path_->next.back().get();
    known->call = std::move(*call);
    path_ = known;
    path_->family = family_of(*path_);
    paths_->count_path();
  } else {
    path_ = known;
  }
  become_other_value(self, {});
  return result.release().ptr();
}

// -- graphs --------------------------------------------------------------------------------------

py::object Capture::make_graph(const std::vector<int>& wanted,
                               const std::vector<phi::DDim>* open_shapes) const {
  py::list calls, kinds, examples;
  for (const CapturedPath* each : path()) {
    const CapturedCall& call = each->call;
    py::list arguments;
    for (const Argument& argument : call.arguments) arguments.append(described(argument));
    calls.append(py::make_tuple(call.function->name, call.function->is_method, arguments,
                                call.keywords, described(call.result), call.has_gradient,
                                call.first_value, call.first_result, call.views));
    for (const ValueKind& kind : call.kinds) {
      const phi::DDim& shape = open_shapes == nullptr ? kind.shape : (*open_shapes)[kinds.size()];
      kinds.append(py::make_tuple(phi::DataTypeToString(kind.dtype), phi::vectorize<int64_t>(shape),
                                  kind.stop_gradient, kind.is_contiguous, kind.is_parameter));
    }
  }
  if (open_shapes != nullptr) {
    for (const auto& shapes : paths_->examples_of(*path_)) {
      py::list example;
      for (const phi::DDim& shape : shapes) example.append(phi::vectorize<int64_t>(shape));
      examples.append(example);
    }
  }
  return paths_->make_graph()(calls, kinds, wanted, examples);
}

}  // namespace paddle_ngraph
