#include "model_builder.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "error.h"
#include "flags.h"
#include "tensor_bridge.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

// The platform that the openvino wheel's own bindings were built for, as pybind11 writes it. Ours
// are built with Paddle's pybind11; both use GCC's C++11 ABI, so a raw pointer may cross.
constexpr char kOpenvinoPlatform[] = "system_libstdcpp_gxx_abi_1xxx_use_cxx11_abi_1";

// The C++ object behind a Python ov.Model (pybind11's cross-module conduit).
std::shared_ptr<ov::Model> unwrap(const py::object& model) {
  py::capsule type(&typeid(ov::Model), typeid(std::type_info).name());
  py::object pointer = model.attr("_pybind11_conduit_v1_")(py::bytes(kOpenvinoPlatform), type,
                                                           py::bytes("raw_pointer_ephemeral"));
  if (pointer.is_none()) {
    throw NgraphError("this openvino wheel was built with another C++ ABI than paddle-ngraph");
  }
  return static_cast<ov::Model*>(pointer.cast<py::capsule>().get_pointer())->shared_from_this();
}

py::tuple shape_of(const phi::DenseTensor& tensor) {
  const auto& dims = tensor.dims();
  py::tuple shape(dims.size());
  for (int i = 0; i < dims.size(); ++i) shape[i] = dims[i];
  return shape;
}

std::vector<RangeCheck> read_checks(const py::list& list) {
  std::vector<RangeCheck> checks;
  for (const auto& item : list) {
    RangeCheck check;
    check.input = item.attr("input").cast<size_t>();
    check.low = item.attr("low").cast<int64_t>();
    check.high = item.attr("high").cast<int64_t>();
    check.has_ignored = !item.attr("ignored").is_none();
    if (check.has_ignored) check.ignored = item.attr("ignored").cast<int64_t>();
    check.message = item.attr("message").cast<std::string>();
    checks.push_back(std::move(check));
  }
  return checks;
}

py::dict read_values(const std::vector<phi::DenseTensor*>& inputs,
                     const std::vector<size_t>& value_inputs) {
  py::dict values;
  for (size_t input : value_inputs) {
    const auto& tensor = *inputs[input];
    const auto bytes = static_cast<size_t>(tensor.numel()) * phi::SizeOf(tensor.dtype());
    values[py::int_(input)] = py::bytes(static_cast<const char*>(tensor.data()), bytes);
  }
  return values;
}

template <typename Function>
auto with_python(Function&& function) {
  py::gil_scoped_acquire gil;
  try {
    return function();
  } catch (const py::error_already_set& error) {
    const auto text = py::str(error.value()).cast<std::string>();
    if (error.matches(PyExc_ValueError)) throw InvalidInput(text);
    throw NgraphError(text);
  }
}

}  // namespace

void verify_graph(const std::string& graph) {
  with_python([&] {
    py::module_::import("paddle_ngraph.graph").attr("verify")(graph);
    return true;
  });
}

BuiltModel build_model(const std::string& graph, const std::vector<phi::DenseTensor*>& inputs,
                       const std::vector<size_t>& value_inputs) {
  return with_python([&] {
    py::list signature;
    for (const auto* tensor : inputs) {
      std::string dtype = to_element_type(tensor->dtype()).get_type_name();
      signature.append(py::make_tuple(dtype, shape_of(*tensor)));
    }
    py::tuple result = py::module_::import("paddle_ngraph.bridge")
                           .attr("build_model")(graph, signature, read_values(inputs, value_inputs));
    BuiltModel built;
    built.model = unwrap(result[0]);
    built.parameter_inputs = result[1].cast<std::vector<size_t>>();
    built.checks = read_checks(result[2]);
    return built;
  });
}

ov::CompiledModel compile(const std::shared_ptr<ov::Model>& model) {
  static ov::Core core;
  ov::AnyMap config{
      ov::hint::performance_mode(ov::hint::PerformanceMode::LATENCY),
      // On CPUs with bfloat16 units the plugin's own default would be bfloat16.
      ov::hint::inference_precision(ov::element::f32),
  };
  if (FLAGS_ngraph_num_threads > 0) {
    config.insert(ov::inference_num_threads(FLAGS_ngraph_num_threads));
  }
  return core.compile_model(model, "CPU", config);
}

}  // namespace paddle_ngraph
