#include "core/paddle/kernel_call.h"

#include <pybind11/stl.h>

#include <memory>
#include <set>
#include <vector>

#include <dlfcn.h>

#include "paddle/fluid/pir/dialect/kernel/ir/kernel_attribute.h"
#include "paddle/fluid/pir/dialect/operator/interface/op_yaml_info.h"
#include "paddle/fluid/pir/dialect/operator/ir/op_attribute.h"
#include "paddle/fluid/pir/dialect/operator/utils/op_yaml_info_parser.h"
#include "paddle/fluid/pir/transforms/pd_op_to_kernel_pass.h"
#include "paddle/phi/core/kernel_factory.h"
#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/ir_context.h"

#include "core/common/error.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

using paddle::dialect::OpYamlInfoParser;
using phi::AttributeType;

constexpr char kKernel[] = "pd_kernel.phi_kernel";
constexpr char kList[] = "pir::VectorType<paddle::dialect::DenseTensorType>";

// The name of an operator in the program: lowering to kernels renames operators.
std::string name_of(const pir::Operation& op) {
  const auto known = op.attributes().find("op_name");
  if (known == op.attributes().end()) return op.name();
  return known->second.dyn_cast<pir::StrAttribute>().AsString();
}

const pir::Operation& only(const std::string& name, const pir::Block& block) {
  const pir::Operation* found = nullptr;
  for (const auto& op : block) {
    if (name_of(op) != name) continue;
    if (found != nullptr) throw NgraphError("there are several operators " + name);
    found = &op;
  }
  if (found == nullptr) throw NgraphError("Paddle calls no kernel for it");
  return *found;
}

// Throws if lowering has added operators to the program: these would convert operands for the
// kernel.
void require_no_conversions(const pir::Block& given, const pir::Block& lowered) {
  std::set<std::string> names;
  for (const auto& op : given) names.insert(op.name());
  for (const auto& op : lowered) {
    if (names.count(name_of(op)) == 0) {
      throw NgraphError("Paddle converts its operands for the kernel: " + name_of(op));
    }
  }
}

const phi::Kernel& found_kernel(const std::string& name, const phi::KernelKey& key) {
  const auto found = phi::KernelFactory::Instance().SelectKernelOrThrowError(name, key);
  auto* function = found.kernel.GetVariadicKernelFn<void*>();
  Dl_info library{};
  if (function == nullptr || dladdr(function, &library) == 0) {
    throw NgraphError(concat("the kernel ", name, " is no function"));
  }
  const std::string file = library.dli_fname;
  if (file.substr(file.rfind('/') + 1).rfind("libphi", 0) != 0) {
    throw NgraphError(concat("the kernel ", name, " is not in libphi"));
  }
  return found.kernel;
}

struct Attribute {
  std::string kind;
  py::object value;
  AttributeType type;  // type of the kernel's parameter that gets the attribute
};

template <typename Item>
std::vector<decltype(std::declval<Item>().data())> data_of(const pir::Attribute& attribute) {
  std::vector<decltype(std::declval<Item>().data())> values;
  for (const auto& item : attribute.dyn_cast<pir::ArrayAttribute>().AsVector()) {
    values.push_back(item.dyn_cast<Item>().data());
  }
  return values;
}

std::vector<std::string> texts_of(const pir::Attribute& attribute) {
  std::vector<std::string> values;
  for (const auto& item : attribute.dyn_cast<pir::ArrayAttribute>().AsVector()) {
    values.push_back(item.dyn_cast<pir::StrAttribute>().AsString());
  }
  return values;
}

// Returns (dtype, value) of a phi::Scalar, for the description of a kernel call.
py::object plain_scalar(const phi::Scalar& scalar) {
  const auto dtype = phi::DataTypeToString(scalar.dtype());
  switch (scalar.dtype()) {
    case phi::DataType::BOOL:
      return py::make_tuple(dtype, scalar.to<bool>());
    case phi::DataType::FLOAT32:
    case phi::DataType::FLOAT64:
      return py::make_tuple(dtype, scalar.to<double>());
    case phi::DataType::INT32:
    case phi::DataType::INT64:
      return py::make_tuple(dtype, scalar.to<int64_t>());
    default:
      throw NgraphError(concat("an attribute is a number of dtype ", dtype));
  }
}

py::object plain_scalars(const pir::Attribute& attribute) {
  py::list values;
  for (const auto& item : attribute.dyn_cast<pir::ArrayAttribute>().AsVector()) {
    values.append(plain_scalar(item.dyn_cast<paddle::dialect::ScalarAttribute>().data()));
  }
  return std::move(values);
}

// Converts an attribute to the type that the kernel gets, which the declared type selects, as in
// Paddle's executor.
Attribute attribute_of(const std::string& type, const pir::Attribute& attribute) {
  if (type == "pir::BoolAttribute") {
    return {"bool", py::cast(attribute.dyn_cast<pir::BoolAttribute>().data()), AttributeType::BOOL};
  }
  if (type == "pir::Int32Attribute") {
    return {"int32", py::cast(attribute.dyn_cast<pir::Int32Attribute>().data()),
            AttributeType::INT32};
  }
  if (type == "pir::Int64Attribute") {
    return {"int64", py::cast(attribute.dyn_cast<pir::Int64Attribute>().data()),
            AttributeType::INT64};
  }
  if (type == "pir::FloatAttribute") {
    return {"float32", py::cast(attribute.dyn_cast<pir::FloatAttribute>().data()),
            AttributeType::FLOAT32};
  }
  if (type == "pir::DoubleAttribute") {
    return {"float64", py::cast(attribute.dyn_cast<pir::DoubleAttribute>().data()),
            AttributeType::FLOAT64};
  }
  if (type == "pir::StrAttribute") {
    return {"text", py::cast(attribute.dyn_cast<pir::StrAttribute>().AsString()),
            AttributeType::STRING};
  }
  if (type == "pir::ArrayAttribute<pir::Int32Attribute>") {
    return {"int32s", py::cast(data_of<pir::Int32Attribute>(attribute)), AttributeType::INT32S};
  }
  if (type == "pir::ArrayAttribute<pir::Int64Attribute>") {
    return {"int64s", py::cast(data_of<pir::Int64Attribute>(attribute)), AttributeType::INT64S};
  }
  if (type == "pir::ArrayAttribute<pir::FloatAttribute>") {
    return {"float32s", py::cast(data_of<pir::FloatAttribute>(attribute)), AttributeType::FLOAT32S};
  }
  if (type == "pir::ArrayAttribute<pir::DoubleAttribute>") {
    return {"float64s", py::cast(data_of<pir::DoubleAttribute>(attribute)),
            AttributeType::FLOAT64S};
  }
  if (type == "pir::ArrayAttribute<pir::StrAttribute>") {
    return {"texts", py::cast(texts_of(attribute)), AttributeType::STRINGS};
  }
  if (type == "pir::ArrayAttribute<paddle::dialect::ScalarAttribute>") {
    return {"scalars", plain_scalars(attribute), AttributeType::SCALARS};
  }
  if (type == "paddle::dialect::ScalarAttribute") {
    return {"scalar", plain_scalar(attribute.dyn_cast<paddle::dialect::ScalarAttribute>().data()),
            AttributeType::SCALAR};
  }
  if (type == "paddle::dialect::IntArrayAttribute") {
    return {"ints",
            py::cast(attribute.dyn_cast<paddle::dialect::IntArrayAttribute>().data().GetData()),
            AttributeType::INT_ARRAY};
  }
  if (type == "paddle::dialect::DataTypeAttribute") {
    const auto dtype = attribute.dyn_cast<paddle::dialect::DataTypeAttribute>().data();
    return {"dtype", py::cast(phi::DataTypeToString(dtype)), AttributeType::DATA_TYPE};
  }
  if (type == "paddle::dialect::PlaceAttribute") {
    return {"place", py::none(), AttributeType::PLACE};
  }
  throw NgraphError(concat("an attribute is a ", type));
}

Attribute operand_as_attribute(const OpYamlInfoParser& info, const std::string& name) {
  const bool is_number = info.TensorAttrTypeName(name) == "paddle::dialect::ScalarAttribute";
  return {"operand", py::cast(info.InputName2Id().at(name)),
          is_number ? AttributeType::SCALAR : AttributeType::INT_ARRAY};
}

std::vector<Attribute> attributes_of(const OpYamlInfoParser& info, const pir::Operation& op,
                                     bool is_kernel) {
  std::vector<Attribute> found;
  for (const auto& name : info.AttrParams(is_kernel)) {
    if (info.InputName2Id().count(name) > 0) {
      found.push_back(operand_as_attribute(info, name));
      continue;
    }
    const auto attribute = op.attributes().find(name);
    if (attribute == op.attributes().end()) throw NgraphError("it has no attribute " + name);
    found.push_back(attribute_of(info.AttrTypeName(name), attribute->second));
  }
  return found;
}

// Throws unless the operands and attributes of the operator match the kernel's parameters. The
// kernel may have fewer parameters than the operator has attributes: it ignores the last ones.
void require_signature(const phi::Kernel& kernel, size_t num_inputs,
                       const std::vector<Attribute>& attributes, size_t num_results) {
  const auto& taken = kernel.args_def();
  bool fits = taken.input_defs().size() == num_inputs &&
              taken.output_defs().size() == num_results &&
              taken.attribute_defs().size() <= attributes.size();
  for (size_t i = 0; fits && i < taken.attribute_defs().size(); ++i) {
    fits = taken.attribute_defs()[i].type_index == attributes[i].type;
  }
  if (fits) return;
  throw NgraphError(concat("its kernel takes ", taken.input_defs().size(), " tensors and ",
                           taken.attribute_defs().size(), " attributes, makes ",
                           taken.output_defs().size(), " tensors, and the operator has ",
                           num_inputs, ", ", attributes.size(), " and ", num_results,
                           " of these, or attributes of other types"));
}

py::list plain(const std::vector<Attribute>& attributes) {
  py::list pairs;
  for (const auto& each : attributes) pairs.append(py::make_tuple(each.kind, each.value));
  return pairs;
}

std::vector<size_t> lists_of(const OpYamlInfoParser& info) {
  std::vector<size_t> numbers;
  for (size_t i = 0; i < info.InputNames().size(); ++i) {
    if (info.GetInputType(i) == kList) numbers.push_back(i);
  }
  return numbers;
}

// The operands that are read as attributes of type Scalar.
std::vector<size_t> scalars_of(const OpYamlInfoParser& info) {
  std::vector<size_t> numbers;
  for (const auto& name : info.AttrParams(true)) {
    const auto operand = info.InputName2Id().find(name);
    if (operand == info.InputName2Id().end()) continue;
    if (info.TensorAttrTypeName(name) == "paddle::dialect::ScalarAttribute") {
      numbers.push_back(operand->second);
    }
  }
  return numbers;
}

std::vector<uint32_t> inputs_of(const OpYamlInfoParser& info, bool is_kernel) {
  std::vector<uint32_t> numbers;
  for (const auto& name : info.TensorParams(is_kernel)) {
    numbers.push_back(info.InputName2Id().at(name));
  }
  return numbers;
}

}  // namespace

py::dict kernel_call(pir::Program* program, const std::string& name) {
  const pir::Operation& op = only(name, *program->block());
  const auto* interface = op.info().GetInterfaceImpl<paddle::dialect::OpYamlInfoInterface>();
  if (interface == nullptr) throw NgraphError("Paddle does not say how its kernel is called");
  const OpYamlInfoParser info(interface->get_op_info_(name));

  const auto lowered = paddle::dialect::PdOpLowerToKernelPass(program, phi::CPUPlace());
  const pir::Operation& call = only(name, *lowered->block());
  if (call.name() != kKernel) throw NgraphError("its kernel is not one of PHI");
  require_no_conversions(*program->block(), *lowered->block());
  const auto kernel = call.attribute<pir::StrAttribute>("kernel_name").AsString();
  const auto key = call.attribute<paddle::dialect::KernelAttribute>("kernel_key").data();

  const auto kernel_inputs = inputs_of(info, true);
  const auto kernel_attributes = attributes_of(info, op, true);
  require_signature(found_kernel(kernel, key), kernel_inputs.size(), kernel_attributes,
                    op.num_results());
  py::dict found;
  found["kernel"] = kernel;
  found["dtype"] = phi::DataTypeToString(key.dtype());
  found["infer_meta"] = info.OpRuntimeInfo().infer_meta_func;
  found["lists"] = lists_of(info);
  found["scalars"] = scalars_of(info);
  found["kernel_inputs"] = kernel_inputs;
  found["kernel_attributes"] = plain(kernel_attributes);
  found["meta_inputs"] = inputs_of(info, false);
  found["meta_attributes"] = plain(attributes_of(info, op, false));
  return found;
}

}  // namespace paddle_ngraph
