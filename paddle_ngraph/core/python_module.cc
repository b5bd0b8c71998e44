// paddle_ngraph._core: the C++ core as Python sees it.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <openvino/core/version.hpp>

#include "error.h"
#include "function_cache.h"
#include "ngraph_engine.h"
#include "ngraph_engine_op.h"
#include "program_editor.h"
#include "tensor_bridge.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

paddle::Tensor from_numpy(const py::array& array, ov::element::Type type) {
  const auto contiguous = py::array::ensure(array, py::array::c_style);
  ov::Shape shape(contiguous.shape(), contiguous.shape() + contiguous.ndim());
  auto tensor = allocate(shape, type);
  if (contiguous.nbytes() > 0) std::memcpy(tensor.data(), contiguous.data(), contiguous.nbytes());
  return tensor;
}

ov::element::Type type_of(const py::array& array) {
  return ov::element::Type(py::str(array.dtype().attr("name")).cast<std::string>() == "bool"
                               ? "boolean"
                               : py::str(array.dtype().attr("name")).cast<std::string>());
}

py::array to_numpy(const phi::DenseTensor& tensor) {
  const auto type = to_element_type(tensor.dtype());
  const auto& dims = tensor.dims();
  std::vector<py::ssize_t> shape;
  for (int i = 0; i < dims.size(); ++i) shape.push_back(dims[i]);
  const auto name = type == ov::element::boolean ? std::string("bool") : type.to_string();
  static const std::unordered_map<std::string, std::string> names{
      {"f16", "float16"}, {"f32", "float32"}, {"f64", "float64"}, {"i8", "int8"},
      {"i16", "int16"},   {"i32", "int32"},   {"i64", "int64"},   {"u8", "uint8"},
      {"bool", "bool"}};
  auto found = names.find(name);
  if (found == names.end()) throw NgraphError("NumPy has no dtype for " + name);
  py::array array(py::dtype(found->second), shape);
  if (array.nbytes() > 0) std::memcpy(array.mutable_data(), tensor.data(), array.nbytes());
  return array;
}

// Runs a graph string on NumPy arrays: inputs, then states. Returns outputs, then new states.
std::vector<py::array> run_arrays(const NgraphEngine& engine, const std::vector<py::array>& arrays) {
  if (arrays.size() != engine.num_inputs()) {
    throw NgraphError(concat("this engine takes ", engine.num_inputs(), " arrays, got ",
                             arrays.size()));
  }
  std::vector<paddle::Tensor> tensors;
  NgraphIO io;
  for (const auto& array : arrays) tensors.push_back(from_numpy(array, type_of(array)));
  for (auto& tensor : tensors) io.inputs.push_back(dense(tensor));
  std::vector<phi::DenseTensor> outputs(engine.num_outputs());
  for (auto& output : outputs) io.outputs.push_back(&output);
  io.num_states = engine.num_states();
  io.state_outputs.assign(io.num_states, nullptr);
  {
    py::gil_scoped_release release;
    engine.run(io);
  }
  std::vector<py::array> results;
  for (const auto& output : outputs) results.push_back(to_numpy(output));
  for (size_t i = io.inputs.size() - io.num_states; i < io.inputs.size(); ++i) {
    results.push_back(to_numpy(*io.inputs[i]));
  }
  return results;
}

py::dict engine_stats() {
  auto& stats = EngineStats::instance();
  py::dict result;
  result["engine_runs"] = stats.engine_runs.load();
  result["functions_built"] = stats.functions_built.load();
  result["functions_reused"] = stats.functions_reused.load();
  return result;
}

py::dict cache_info() {
  const CacheInfo info = FunctionCache::instance().info();
  py::dict result;
  result["hits"] = info.hits;
  result["misses"] = info.misses;
  result["maxsize"] = info.maxsize;
  result["currsize"] = info.currsize;
  result["evictions"] = info.evictions;
  return result;
}

}  // namespace

}  // namespace paddle_ngraph

PYBIND11_MODULE(_core, module) {
  using namespace paddle_ngraph;  // NOLINT
  py::register_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const InvalidInput& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const NgraphError& error) {
      py::object type = py::module_::import("paddle_ngraph.errors").attr("NgraphError");
      PyErr_SetString(type.ptr(), error.what());
    }
  });

  module.attr("openvino_build") = ov::get_openvino_version().buildNumber;
  module.attr("max_outputs") = kMaxOutputs;
  module.def("inplace_pairs",
             [](const pir::Operation& op) { return inplace_pairs(op); });
  module.def("insert_ngraph_engine", &insert_ngraph_engine, py::arg("block"),
             py::arg("anchor").none(true), py::arg("inputs"), py::arg("states"), py::arg("outputs"),
             py::arg("graph"), py::arg("interval"));
  module.def("engine_stats", &engine_stats);
  module.def("reset_engine_stats", [] {
    EngineStats::instance().reset();
    FunctionCache::instance().reset_counters();
  });
  module.def("cache_info", &cache_info);
  module.def("clear_cache", [] { FunctionCache::instance().clear(); });

  py::class_<NgraphEngine, std::shared_ptr<NgraphEngine>>(module, "NgraphEngine")
      .def(py::init([](const std::string& graph) { return NgraphEngine::of(graph); }),
           py::arg("graph"))
      .def_property_readonly("num_inputs", &NgraphEngine::num_inputs)
      .def_property_readonly("num_states", &NgraphEngine::num_states)
      .def_property_readonly("num_outputs", &NgraphEngine::num_outputs)
      .def("run", &run_arrays, py::arg("arrays"));
}
