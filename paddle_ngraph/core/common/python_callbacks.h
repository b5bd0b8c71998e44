// Table of the package's Python functions that the core calls, with their modules.
#pragma once

// Includes pytypes.h instead of pybind11.h, which would compile the code of Python errors into
// every source.
#include <pybind11/pytypes.h>

#include <array>
#include <utility>

namespace paddle_ngraph {

enum class PythonCallback {
  kVerifyGraph,
  kBuildEnvironment,
  kRememberShapes,
  kDisableDynamicShapes,
  kBuildModel,
  kRunFallback,
  kRunLegacyOperator,
  kCheckRun,
  kSkipCheck,
  kProfileRun,
  kCheckLayer,
  kCheckCall,
  kCallingLine,
  kNoteNativeCall,
  kCreatesEmptyTensor,
  kDenyGraph,
  kClearFailure,
  kShouldCompileInBackground,
  kSubmitCompileJob,
  kWaitForCompileJobs,
  kWaitForBuild,
  kMaySkipCompile,
  kApplyPass,
  kError,
  kErrorCode,
  kOutcome,
};

// Module and name of each Python function that the core calls, in the order of the enumeration
// PythonCallback.
inline constexpr std::array<std::pair<const char*, const char*>, 26> kPythonCallbacks = {{
    {"paddle_ngraph.ir.graph", "verify"},
    {"paddle_ngraph.conversion.disk_cache", "build_environment"},
    {"paddle_ngraph.conversion.dynamic_shapes", "remember"},
    {"paddle_ngraph.conversion.dynamic_shapes", "give_up"},
    {"paddle_ngraph.conversion.build", "build_model"},
    {"paddle_ngraph.partitioning.fallback", "run"},
    {"paddle_ngraph.partitioning.legacy_operators", "run"},
    {"paddle_ngraph.verification.checks", "check_run"},
    {"paddle_ngraph.verification.checks", "skip"},
    {"paddle_ngraph.profiling.recorded_inputs", "take"},
    {"paddle_ngraph.verification.packed_layers", "check_layer"},
    {"paddle_ngraph.verification.dynamic_calls", "check_call"},
    {"paddle_ngraph.paddle_private.call_stacks", "calling_line"},
    {"paddle_ngraph.partitioning.operator_lines", "note_native_call"},
    {"paddle_ngraph.partitioning.fallback", "makes_empty"},
    {"paddle_ngraph.conversion.denylist", "refuse_graph"},
    {"paddle_ngraph.conversion.denylist", "clear_failure"},
    {"paddle_ngraph.partitioning.background_compile", "wants"},
    {"paddle_ngraph.partitioning.background_compile", "take"},
    {"paddle_ngraph.partitioning.background_compile", "wait"},
    {"paddle_ngraph.partitioning.background_compile", "wait_for_build"},
    {"paddle_ngraph.partitioning.background_compile", "may_leave"},
    {"paddle_ngraph.partitioning.program_pass", "apply_by_name"},
    {"paddle_ngraph.errors", "NgraphError"},
    {"paddle_ngraph.errors", "ErrorCode"},
    {"paddle_ngraph.errors", "outcome"},
}};

// Imports a Python module. Requires the GIL.
inline pybind11::object import_module(const char* module) {
  auto found = pybind11::reinterpret_steal<pybind11::object>(PyImport_ImportModule(module));
  if (!found) throw pybind11::error_already_set();
  return found;
}

// Returns the Python function that `call` names; imports its module at the first call. Requires the
// GIL.
inline pybind11::object callback(PythonCallback call) {
  const auto& [module, name] = kPythonCallbacks[static_cast<size_t>(call)];
  return import_module(module).attr(name);
}

}  // namespace paddle_ngraph
