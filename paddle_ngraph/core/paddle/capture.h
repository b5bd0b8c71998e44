// Capture of the operators that a function of dynamic mode calls.
//
// Python runs the function in each call, whatever it does. Operators on the list of those that
// may wait are not computed when they are called, but when somebody wants to know: their results
// are tensors without memory, of which shape and dtype are known from an earlier call with the
// same operators on the same kinds of tensors. Whatever else of Paddle is called (everything that
// is no such operator, announced_calls.h) is a graph break: first everything that waits is
// computed, as one graph, or operator by operator.
//
// So nothing of the function is assumed, and nothing of it has to be guarded: what is computed are
// the operators that this very call has asked for.
#pragma once

#include <pybind11/pytypes.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paddle/phi/common/data_type.h"
#include "paddle/phi/core/allocator.h"
#include "paddle/phi/core/ddim.h"
#include "paddle/phi/core/tensor_base.h"
#include "paddle/phi/core/tensor_meta.h"

#include "core/paddle/exposure.h"
#include "core/paddle/positions.h"

namespace paddle_ngraph {

struct AnnouncedFunction;

// What a value is known by: every other tensor of this kind may stand in its place.
struct ValueKind {
  phi::DataType dtype;
  phi::DDim shape;
  bool stop_gradient;
  bool is_contiguous;
  bool is_parameter;
  phi::DDim strides;  // which operators share memory depends on them

  bool operator==(const ValueKind& other) const;
};

// What ends a graph where the function itself ends.
constexpr const char* kEndOfFunction = "the end of the function";

// An argument or result of a call: a value, by its number in the path; a list, tuple or slice; an
// object that is what it is; or a tensor without memory, that nobody reads or computes.
struct Argument {
  enum class Kind { kValue, kItems, kConstant, kNothing };
  Kind kind = Kind::kConstant;
  int value = -1;
  PyTypeObject* type = nullptr;  // of kItems
  std::vector<Argument> items;
  pybind11::object constant;
  bool is_any_of_type = false;  // a constant that equals all others of its type
  // Of kNothing, if it needs no memory for it has no elements.
  std::shared_ptr<const phi::DenseTensorMeta> empty;
  bool stop_gradient = true;
};

// A value in what `make_graph` is given.
struct CapturedValue {
  int number;
};

// A call of an operator. The values that it adds to those of the calls before: the tensors that it
// is the first to be given, then its results.
struct CapturedCall {
  const AnnouncedFunction* function = nullptr;
  bool has_gradient = true;
  std::vector<Argument> arguments;  // of a method, the object first; keywords last
  std::vector<pybind11::str> keywords;
  Argument result;
  int first_value = 0;
  int first_result = 0;
  std::vector<ValueKind> kinds;
  std::map<int, int> views;  // results that have the memory of another value, by their numbers
};

// A call after those of its parents, and what came of the path that ends here.
struct CapturedPath {
  explicit CapturedPath(CapturedPath* previous = nullptr) : previous(previous) {}

  CapturedPath* previous;
  CapturedCall call;
  size_t family = 0;  // equal for paths that differ in sizes only
  std::vector<std::unique_ptr<CapturedPath>> next;
  std::map<std::string, std::string> breaks;            // what has ended it, and where
  std::map<std::vector<int>, pybind11::object> graphs;  // by the values that were wanted
  std::set<std::vector<int>> wanted;                    // without a graph so far
};

// What paths have in common that differ in sizes only, and what computes all of them.
struct CapturedPattern {
  std::vector<CapturedCall> calls;
  std::vector<phi::DDim> shapes;                        // of all values; -1: any size
  std::map<std::vector<int>, pybind11::object> graphs;  // by the values that were wanted
};

// All paths of a function. Guarded by Python's lock.
class CapturedPaths {
 public:
  // `make_graph` is given calls, kinds of values, the numbers of those that are wanted, and, where
  // sizes in the kinds are open (-1), some examples: the shapes of all values. It returns what
  // computes these from the given ones, or None if operators are to be called.
  // `trains`: whether calls that may get a gradient are captured, too.
  CapturedPaths(pybind11::object make_graph, bool trains);

  bool trains() const { return trains_; }

  const std::shared_ptr<CapturedPath>& root();
  const pybind11::object& make_graph() const { return make_graph_; }
  // Another path, another graph. Beyond a bound everything is forgotten.
  void count_path();
  void count_graph();

  // A path of this tree was found to end.
  void add_end(const CapturedPath& root, CapturedPath& path);
  // The pattern that serves a path, which is made if there are enough paths like it; else null.
  std::shared_ptr<CapturedPattern> pattern_of(const CapturedPath& path);
  // The shapes of values of some paths like it.
  std::vector<std::vector<phi::DDim>> examples_of(const CapturedPath& path) const;
  // What the paths of this family have in common could not be computed.
  void close_family(const CapturedPath& path);

  static constexpr size_t kMostPaths = 60000;
  static constexpr size_t kMostGraphs = 256;
  // This many paths of a pattern get graphs of their own, whose sizes are known.
  static constexpr size_t kOwnGraphs = 2;

  // For each end of a graph: how many calls, what ended it, what computes it.
  pybind11::list ends() const;

 private:
  std::shared_ptr<CapturedPath> root_;
  pybind11::object make_graph_;
  bool trains_;
  void forget_paths();
  void forget();

  // Paths that may differ in sizes only.
  struct Family {
    std::vector<CapturedPath*> ends;
    std::vector<std::shared_ptr<CapturedPattern>> patterns;
    bool is_closed = false;  // each path has a graph of its own
  };
  std::unordered_map<size_t, Family> families_;

  uint64_t settings_ = 0;
  size_t paths_ = 0;
  size_t graphs_ = 0;
};

// While it lives, this thread captures. It has to be ended before.
class Capture {
 public:
  Capture(std::shared_ptr<CapturedPaths> paths, pybind11::object tracer);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  // That of this thread, or null.
  static Capture* here();

  // A call of an operator that may wait. Python's error is set if null is returned.
  PyObject* call(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                 PyObject* kwargs);

  // Whether there are tensors among the arguments, and all depend on shapes only.
  bool is_given_sizes(const std::array<PyObject*, 3>& arguments) const;

  // Whether all tensors among the arguments are computed already, and may be shown.
  bool is_given_known(const std::array<PyObject*, 3>& arguments, bool shows_memory) const;

  // Whether they are sizes, and nothing that waits reads their memory.
  bool may_show(const std::array<PyObject*, 3>& arguments) const;

  // A call at once, after what waits: the path ends here.
  PyObject* call_natively(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                          PyObject* kwargs);

  // A call that changes its tensor, see Changes.
  PyObject* call_changing(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                          PyObject* kwargs);

  // What a call has returned that was computed at once.
  void note_new(PyObject* result);

  // A call whose results depend on shapes only: it is no part of a path, which is one for shapes.
  PyObject* call_for_sizes(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                           PyObject* kwargs);

  // Whether this thread computes, and does not make a program.
  void set_dynamic(bool on) { is_dynamic_ = on; }

  // Computes everything that waits. Returns false if Python's error is set.
  bool settle(const std::string& reason);

  // The same for another thread: what this thread calls next is still part of the path.
  bool settle_for_other();

  // The process is a copy, without the thread that was computing.
  void forget_other_thread();

 private:
  // What a call is given, with copies of tensors that others may write while it waits, and with
  // Python's numbers and tensors for what of NumPy's stands for them.
  std::vector<PyObject*> kept_arguments(const AnnouncedFunction& function,
                                        const std::vector<PyObject*>& given,
                                        std::vector<pybind11::object>* copies) const;
  PyObject* kept(PyObject* argument, const AnnouncedFunction& function, bool is_number,
                 std::vector<pybind11::object>* copies, int depth = 0) const;
  std::optional<pybind11::list> known_list(PyObject* argument) const;
  bool add_numbers(PyObject* tensor, pybind11::list* numbers) const;
  // Whether a tensor waits, or will where the same is called again.
  bool waits(PyObject* tensor) const;
  bool is_given_numbers(PyObject* args, PyObject* self) const;
  bool has_values(const ValueRule& rule, const std::vector<PyObject*>& given) const;
  using Ranges = std::unordered_map<int, std::optional<NumberRange>>;
  std::optional<NumberRange> range_of(int number, Ranges* known) const;
  std::optional<NumberRange> range_of_column(int number, int64_t column, int64_t columns,
                                             Ranges* known) const;
  std::optional<NumberRange> range_of_made(const CapturedCall& call, int number,
                                           Ranges* known) const;
  std::optional<NumberRange> range_of(const Argument& argument, Ranges* known) const;
  CapturedPath* find_next(const AnnouncedFunction& function, bool has_gradient,
                          const std::vector<PyObject*>& given, PyObject* kwargs);
  bool matches(const Argument& expected, PyObject* given, const CapturedCall& call);
  bool matches_value(const Argument& expected, PyObject* given, const CapturedCall& call);
  PyObject* defer(CapturedPath& path);
  bool may_write_now(const AnnouncedFunction& function, PyObject* self, PyObject* args,
                     PyObject* kwargs) const;
  bool may_change(const AnnouncedFunction& function, PyObject* tensor) const;
  bool has_own_memory(PyObject* tensor) const;
  bool is_shared(int number) const;
  bool shares_gradient(PyObject* tensor) const;
  const CapturedCall& call_of(int number) const;
  const ValueKind& known_kind(int number) const;
  void defer_change(const CapturedPath& path, PyObject* tensor);
  void become_other_value(PyObject* tensor, pybind11::object former);
  PyObject* record_change(const AnnouncedFunction& function, CapturedPath* known,
                          const std::vector<PyObject*>& given, PyObject* self, PyObject* args,
                          PyObject* kwargs);
  PyObject* follow(CapturedPath& path, PyObject* self, PyObject* args, PyObject* kwargs);
  PyObject* record(const AnnouncedFunction& function, bool has_gradient,
                   const std::vector<PyObject*>& given, PyObject* self, PyObject* args,
                   PyObject* kwargs);
  std::optional<CapturedCall> describe_call(const AnnouncedFunction& function,
                                            const std::vector<PyObject*>& given, PyObject* kwargs);
  bool describe(PyObject* given, bool may_be_tensor, CapturedCall& call, Argument& found,
                int depth = 0);
  bool may_wait(const CapturedCall& call) const;
  bool describe_result(PyObject* result, CapturedCall& call, Argument& found);
  pybind11::object make_lazy(const Argument& result, const CapturedCall& call);
  bool compute();
  void compute_wanted();
  bool has_recurred(const std::vector<int>& wanted);
  bool compute_graph(const pybind11::object& graph, const std::vector<int>& wanted);
  bool have_shapes(const pybind11::list& results, const std::vector<int>& wanted) const;
  void close_family(const std::vector<int>& wanted);
  bool compute_one_by_one();
  bool recognize(const Argument& expected, PyObject* result, const CapturedCall& call);
  void assign(const Argument& expected, PyObject* computed);
  bool wait() const;
  pybind11::object argument(const Argument& of) const;
  std::vector<CapturedPath*> path() const;
  std::vector<int> wanted() const;
  pybind11::object find_or_make_graph(const std::vector<int>& wanted);
  pybind11::object make_graph(const std::vector<int>& wanted,
                              const std::vector<phi::DDim>* open_shapes) const;
  bool may_capture(bool has_gradient) const;
  bool has_gradient() const;
  int number_of(PyObject* tensor) const;
  void begin();
  void add(PyObject* tensor, bool is_made);
  void read(PyObject* tensor);
  std::vector<std::unique_ptr<const Holding>> stop_reading();
  void forget_unused();
  bool shares_any(const CapturedCall& call, const std::vector<pybind11::object>& copies) const;

  std::shared_ptr<CapturedPaths> paths_;
  std::shared_ptr<CapturedPath> root_;
  pybind11::object tracer_;
  pybind11::object no_amp_;
  CapturedPath* path_ = nullptr;
  bool is_recording_ = false;  // what is called is computed at once
  bool is_computing_ = false;
  std::thread::id computing_;  // which thread does
  bool is_dynamic_ = true;
  std::vector<pybind11::object> values_;  // null: computed, and nobody has it
  std::vector<bool> is_made_;             // whether a call has made the value
  Ranges forgotten_;                      // of values that were given
  // Memory that calls which wait read. To hold it does not count: weights would be open to others.
  std::vector<const phi::Allocation*> read_;
  std::vector<std::unique_ptr<const Holding>> held_;
  std::unordered_map<PyObject*, int> numbers_;
  std::vector<PyObject*> new_values_;                      // of the call that is looked at
  std::unordered_map<PyObject*, pybind11::object> sizes_;  // tensors that depend on shapes only
  // Tensors that were computed at once in this call of the function, such as zeros to be filled.
  std::unordered_map<PyObject*, std::weak_ptr<phi::TensorBase>> new_;
  Capture* outer_ = nullptr;
};

// While it lives, this thread does not capture.
class NoCapture {
 public:
  NoCapture();
  ~NoCapture();
  NoCapture(const NoCapture&) = delete;
  NoCapture& operator=(const NoCapture&) = delete;

 private:
  Capture* before_;
};

// In a forked process: no other thread goes on computing what waits.
void forget_captures_of_other_threads();

// Whether one of these arguments waits, in whichever thread, or never was computed.
bool does_any_wait(PyObject* args, PyObject* kwargs);

// Computes what waits in other threads if it is among these arguments or, where these may be
// written, reads one of them. Returns false if Python's error is set.
bool settle_foreign(PyObject* self, PyObject* args, PyObject* kwargs, bool may_write);

// How often tensors were written by operators of dynamic mode, to be compared.
std::string tensor_versions(const pybind11::list& tensors);

// A flag is set: what was noted before is noted anew. How often that has happened.
void note_setting();
uint64_t number_of_settings();

// Whether this thread's autograd shows functions of the user the tensors that it keeps.
void set_kept_tensors_are_seen(bool on);

}  // namespace paddle_ngraph
