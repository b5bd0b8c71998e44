#include "core/paddle/call_stacks.h"

#include <pybind11/pybind11.h>

#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/operation.h"

#include "core/common/deferred_signals.h"
#include "core/common/python_callbacks.h"
#include "core/engine/work_spans.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace py = pybind11;

namespace {

constexpr char kCallStack[] = "op_callstack";

}  // namespace

std::vector<uintptr_t> call_stacks_of(const pir::Block& block) {
  std::vector<uintptr_t> found;
  found.reserve(block.size());
  for (const auto& op : block) {
    const pir::Attribute stack = op.attribute(kCallStack);
    const bool is_known = stack && stack.isa<pir::ArrayAttribute>();
    found.push_back(is_known ? reinterpret_cast<uintptr_t>(stack.storage()) : 0);
  }
  return found;
}

void inherit_call_stack(const pir::Operation& source, const std::vector<pir::Value>& values) {
  const pir::Attribute stack = source.attribute(kCallStack);
  if (!stack) return;
  for (const pir::Value& value : values) {
    pir::Operation* const op = value ? value.defining_op() : nullptr;
    if (op != nullptr && !op->HasAttribute(kCallStack)) op->set_attribute(kCallStack, stack);
  }
}

std::vector<std::string> frames_of(uintptr_t call_stack) {
  std::vector<std::string> frames;
  if (call_stack == 0) return frames;
  const pir::Attribute stack(reinterpret_cast<const pir::Attribute::Storage*>(  // NOLINT
      call_stack));
  for (const pir::Attribute& frame : stack.dyn_cast<pir::ArrayAttribute>().AsVector()) {
    if (frame.isa<pir::StrAttribute>()) {
      frames.push_back(frame.dyn_cast<pir::StrAttribute>().AsString());
    }
  }
  return frames;
}

bool notes_lines() { return is_profiling() || FLAGS_ngraph_verify > 0; }

namespace {

// Calls a Python function, whose failure is none of the call whose line is noted.
template <typename... Arguments>
py::object call_safely(PythonCallback function, const Arguments&... arguments) {
  const DeferredSignals deferral(DeferredSignals::Mode::kDeferred);
  const py::error_scope raised_before;
  try {
    return callback(function)(arguments...);
  } catch (const py::error_already_set&) {
    return py::str();
  }
}

}  // namespace

py::object calling_line() { return call_safely(PythonCallback::kCallingLine); }

void note_native_call(const std::string& function) {
  if (is_profiling()) call_safely(PythonCallback::kNoteNativeCall, function);
}

}  // namespace paddle_ngraph
