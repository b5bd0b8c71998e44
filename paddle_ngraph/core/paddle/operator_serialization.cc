#include "core/paddle/operator_serialization.h"

#include <pybind11/stl.h>

#include <set>

#include "paddle/fluid/pir/dialect/operator/interface/infermeta.h"
#include "paddle/fluid/pir/dialect/operator/interface/op_yaml_info.h"
#include "paddle/fluid/pir/dialect/operator/ir/op_attribute.h"
#include "paddle/fluid/pir/dialect/operator/ir/op_type.h"
#include "paddle/fluid/pir/dialect/operator/utils/utils.h"
#include "paddle/pir/include/core/builder.h"
#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/builtin_op.h"
#include "paddle/pir/include/core/builtin_type.h"
#include "paddle/pir/include/core/ir_context.h"

#include "core/common/error.h"
#include "core/paddle/python_lists.h"

namespace py = pybind11;

namespace paddle_ngraph {

namespace {

using paddle::dialect::DataLayoutAttribute;
using paddle::dialect::DataTypeAttribute;
using paddle::dialect::DenseTensorArrayType;
using paddle::dialect::IntArrayAttribute;
using paddle::dialect::PlaceAttribute;

// Suffix of a dtype in the graph string that marks a TensorArray; utils/dtypes.py has it, too.
constexpr char kArray[] = "[]";

pir::IrContext* ir() { return pir::IrContext::Instance(); }

// Whether an attribute of an operator is serialized: not if it does not affect results, or is a
// device, since the engine has only one.
bool is_computed_with(const std::string& name, const pir::Attribute& attribute) {
  static const std::set<std::string> about{"stop_gradient", "persistable", "op_callstack",
                                           "callstack",     "op_role",     "is_distributed",
                                           "need_clip",     "trainable",   "struct_name"};
  return about.count(name) == 0 && !attribute.isa<PlaceAttribute>();
}

struct Plain {
  py::object kind;
  py::object value;
};

template <typename Value>
Plain plain(const char* kind, const Value& value) {
  return {kind == nullptr ? py::none() : py::object(py::str(kind)), py::cast(value)};
}

Plain plain_of(const std::string& name, const pir::Attribute& attribute);

Plain plain_list(const std::string& name, const pir::ArrayAttribute& attribute) {
  py::list values;
  py::object kind = py::none();
  for (size_t i = 0; i < attribute.size(); ++i) {
    const Plain item = plain_of(name, attribute.at(i));
    const bool is_alike =
        i == 0 || (kind.equal(item.kind) && py::type::of(values[0]).is(py::type::of(item.value)));
    if (!is_alike) throw NgraphError(concat("attribute '", name, "' is a list of several types"));
    kind = item.kind;
    values.append(item.value);
  }
  return {kind, values};
}

Plain plain_of(const std::string& name, const pir::Attribute& attribute) {
  if (const auto value = attribute.dyn_cast<pir::BoolAttribute>())
    return plain(nullptr, value.data());
  if (const auto value = attribute.dyn_cast<pir::Int32Attribute>())
    return plain(nullptr, value.data());
  if (const auto value = attribute.dyn_cast<pir::Int64Attribute>())
    return plain("int64", value.data());
  if (const auto value = attribute.dyn_cast<pir::IndexAttribute>())
    return plain("index", value.data());
  if (const auto value = attribute.dyn_cast<pir::FloatAttribute>())
    return plain(nullptr, value.data());
  if (const auto value = attribute.dyn_cast<pir::DoubleAttribute>()) {
    return plain("float64", value.data());
  }
  if (const auto value = attribute.dyn_cast<pir::StrAttribute>()) {
    return plain(nullptr, value.AsString());
  }
  if (const auto value = attribute.dyn_cast<pir::ArrayAttribute>()) return plain_list(name, value);
  if (const auto value = attribute.dyn_cast<IntArrayAttribute>()) {
    return plain("ints", value.data().GetData());
  }
  if (const auto value = attribute.dyn_cast<DataTypeAttribute>()) {
    return plain("dtype", phi::DataTypeToString(value.data()));
  }
  if (const auto value = attribute.dyn_cast<DataLayoutAttribute>()) {
    return plain("layout", common::DataLayoutToString(value.data()));
  }
  throw NgraphError(concat("attribute '", name, "' cannot be read"));
}

pir::Attribute attribute_of(const py::handle& kind, const py::handle& value) {
  const auto name = kind.is_none() ? std::string() : kind.cast<std::string>();
  if (name == "ints") {
    return IntArrayAttribute::get(ir(), phi::IntArray(value.cast<std::vector<int64_t>>()));
  }
  if (py::isinstance<py::list>(value)) {
    std::vector<pir::Attribute> items;
    for (const auto& item : value) items.push_back(attribute_of(kind, item));
    return pir::ArrayAttribute::get(ir(), items);
  }
  if (name == "int64") return pir::Int64Attribute::get(ir(), value.cast<int64_t>());
  if (name == "index") return pir::IndexAttribute::get(ir(), value.cast<int64_t>());
  if (name == "float64") return pir::DoubleAttribute::get(ir(), value.cast<double>());
  if (name == "dtype") {
    return DataTypeAttribute::get(ir(), phi::StringToDataType(value.cast<std::string>()));
  }
  if (name == "layout") {
    return DataLayoutAttribute::get(ir(), common::StringToDataLayout(value.cast<std::string>()));
  }
  if (!name.empty()) throw NgraphError(concat("there is no kind of attribute '", name, "'"));
  if (py::isinstance<py::bool_>(value)) return pir::BoolAttribute::get(ir(), value.cast<bool>());
  if (py::isinstance<py::int_>(value)) return pir::Int32Attribute::get(ir(), value.cast<int>());
  if (py::isinstance<py::float_>(value)) return pir::FloatAttribute::get(ir(), value.cast<float>());
  return pir::StrAttribute::get(ir(), value.cast<std::string>());
}

py::object plain_type(const pir::Type& type) {
  if (!type) return py::none();
  if (const auto dense = type.dyn_cast<pir::DenseTensorType>()) {
    const auto dtype = paddle::dialect::TransToPhiDataType(dense.dtype());
    return py::make_tuple(phi::DataTypeToString(dtype), common::vectorize(dense.dims()));
  }
  if (const auto array = type.dyn_cast<DenseTensorArrayType>()) {
    const auto dtype = paddle::dialect::TransToPhiDataType(array.dtype());
    return py::make_tuple(phi::DataTypeToString(dtype) + kArray, common::vectorize(array.dims()));
  }
  if (const auto list = type.dyn_cast<pir::VectorType>()) {
    py::list members;
    for (const auto& member : list.data()) members.append(plain_type(member));
    return std::move(members);
  }
  throw NgraphError("an output is not a dense tensor");
}

pir::Type type_of(const py::handle& type) {
  if (type.is_none()) return pir::Type();
  if (py::isinstance<py::list>(type)) {
    std::vector<pir::Type> members;
    for (const auto& member : type) members.push_back(type_of(member));
    return pir::VectorType::get(ir(), members);
  }
  auto [name, shape] = type.cast<std::pair<std::string, std::vector<int64_t>>>();
  const size_t end = name.rfind(kArray);
  const auto dtype = paddle::dialect::TransToIrDataType(phi::StringToDataType(name.substr(0, end)));
  if (end != std::string::npos) {
    return DenseTensorArrayType::get(ir(), dtype, common::make_ddim(shape));
  }
  return pir::DenseTensorType::get(ir(), dtype, common::make_ddim(shape), common::DataLayout::NCHW,
                                   {}, 0);
}

pir::Attribute all_of(size_t size, bool value) {
  return pir::ArrayAttribute::get(
      ir(), std::vector<pir::Attribute>(size, pir::BoolAttribute::get(ir(), value)));
}

pir::Value operand_of(pir::Builder* builder, const py::handle& operand) {
  if (operand.is_none()) return pir::Value();
  if (!py::isinstance<py::list>(operand)) return operand.cast<pir::Value>();
  return builder->Build<pir::CombineOp>(operand.cast<std::vector<pir::Value>>()).out();
}

void add_places(const pir::OpInfo& info, const std::string& name, pir::AttributeMap* attributes) {
  const auto* interface = info.GetInterfaceImpl<paddle::dialect::OpYamlInfoInterface>();
  if (interface == nullptr) return;
  const auto declaration = interface->get_op_info_(name);
  for (const auto& declared : std::get<1>(declaration)) {
    if (declared.type_name != "paddle::dialect::PlaceAttribute") continue;
    attributes->emplace(declared.name, PlaceAttribute::get(ir(), phi::CPUPlace()));
  }
}

// A builder that inserts at the end of a block, or before an operator in it.
pir::Builder builder_at(pir::Block* block, pir::Operation* before) {
  pir::Builder builder(ir(), block);
  if (before != nullptr) builder.set_insertion_point(before);
  return builder;
}

// The result types that Paddle infers. Throws NgraphError if Paddle has no inference for the
// operator; exceptions of the inference are passed on.
std::vector<pir::Type> infer(const pir::OpInfo& info, const std::vector<pir::Value>& operands,
                             pir::AttributeMap* attributes) {
  const auto* interface = info.GetInterfaceImpl<paddle::dialect::InferMetaInterface>();
  if (interface == nullptr) {
    throw NgraphError(concat(info.name(), " does not infer its output types"));
  }
  return interface->infer_meta_by_value_(operands, attributes);
}

// Declares a list as the list of its members' types, which may have changed since: Paddle declares
// the sizes of loop-carried values after it has built the body.
void declare_members(pir::Value list) {
  if (!list || !list.type() || !list.type().isa<pir::VectorType>()) return;
  const auto* producer = list.defining_op();
  if (producer == nullptr || !producer->isa<pir::CombineOp>()) return;
  std::vector<pir::Type> types;
  for (const auto& member : producer->operands_source()) types.push_back(member.type());
  list.set_type(pir::VectorType::get(ir(), types));
}

// Appends a control-flow operator to `block`, with one empty block in each of its regions.
pir::Operation* append_with_regions(pir::Block* block, const std::string& name,
                                    const std::vector<pir::Value>& operands,
                                    const std::vector<pir::Type>& types, size_t regions) {
  auto info = ir()->GetRegisteredOpInfo(name);
  if (!info) throw NgraphError(concat("this release of Paddle has no operator ", name));
  pir::AttributeMap attributes;
  if (!types.empty()) attributes["stop_gradient"] = all_of(types.size(), true);
  auto* op = pir::Operation::Create(operands, attributes, types, info, regions);
  for (size_t i = 0; i < regions; ++i) op->region(static_cast<uint32_t>(i)).emplace_back();
  pir::Builder(ir(), block).Insert(op);
  return op;
}

}  // namespace

py::list attributes_of(const pir::Operation& op) {
  py::list attributes;
  for (const auto& [name, attribute] : op.attributes()) {
    if (!is_computed_with(name, attribute)) continue;
    const Plain found = plain_of(name, attribute);
    attributes.append(py::make_tuple(name, found.kind, found.value));
  }
  return attributes;
}

py::list result_types(const pir::Operation& op) {
  py::list types;
  for (const auto& result : op.results()) types.append(plain_type(result.type()));
  return types;
}

py::list inferred_types(const pir::Operation& op) {
  pir::AttributeMap attributes = op.attributes();
  std::vector<pir::Value> operands = op.operands_source();
  for (auto& operand : operands) declare_members(operand);
  py::list types;
  for (const auto& type : infer(op.info(), operands, &attributes)) {
    types.append(plain_type(type));
  }
  return types;
}

py::list append_operator(pir::Block* block, const std::string& name, const py::list& operands,
                         const py::object& types, const py::list& attributes,
                         pir::Operation* before) {
  auto info = ir()->GetRegisteredOpInfo(name);
  if (!info) throw NgraphError(concat("this release of Paddle has no operator ", name));
  pir::Builder builder = builder_at(block, before);
  std::vector<pir::Value> inputs;
  for (const auto& operand : operands) inputs.push_back(operand_of(&builder, operand));
  pir::AttributeMap all;
  for (const auto& attribute : attributes) {
    const auto [key, kind, value] =
        attribute.cast<std::tuple<std::string, py::object, py::object>>();
    all[key] = attribute_of(kind, value);
  }
  add_places(info, name, &all);
  std::vector<pir::Type> outputs;
  if (types.is_none()) {
    outputs = infer(info, inputs, &all);
  } else {
    for (const auto& type : types) outputs.push_back(type_of(type));
  }
  all["stop_gradient"] = all_of(outputs.size(), true);
  auto* op = pir::Operation::Create(inputs, all, outputs, info);
  builder.Insert(op);
  py::list results;
  for (pir::Value result : op->results()) {
    if (result && result.type() && result.type().isa<pir::VectorType>()) {
      results.append(copied_list(builder.Build<pir::SplitOp>(result).outputs()));
    } else {
      results.append(py::cast(result, py::return_value_policy::copy));
    }
  }
  return results;
}

py::tuple append_while(pir::Block* block, const pir::Value& condition,
                       const std::vector<pir::Value>& initial_values) {
  std::vector<pir::Value> operands{condition};
  std::vector<pir::Type> types;
  for (const auto& start : initial_values) {
    operands.push_back(start);
    types.push_back(start.type());
  }
  auto* loop = append_with_regions(block, "pd_op.while", operands, types, 1);
  pir::Block& body = loop->region(0).front();
  std::vector<pir::Value> args;
  for (const auto& type : types) args.push_back(body.AddArg(type));
  for (auto& arg : args) arg.set_attribute("stop_gradient", pir::BoolAttribute::get(ir(), true));
  return py::make_tuple(py::cast(&body, py::return_value_policy::reference), copied_list(args),
                        copied_list(loop->results()));
}

py::tuple append_if(pir::Block* block, const pir::Value& condition, const py::list& types) {
  std::vector<pir::Type> results;
  for (const auto& type : types) results.push_back(type_of(type));
  auto* branch = append_with_regions(block, "pd_op.if", {condition}, results, 2);
  const auto body = [branch](uint32_t number) {
    return py::cast(&branch->region(number).front(), py::return_value_policy::reference);
  };
  return py::make_tuple(body(0), body(1), copied_list(branch->results()));
}

void append_yield(pir::Block* block, const std::vector<pir::Value>& values) {
  append_with_regions(block, "cf.yield", values, {}, 0);
}

pir::Value append_variable(pir::Block* block, const std::string& name, const py::tuple& type,
                           pir::Operation* before) {
  pir::Builder builder = builder_at(block, before);
  auto variable = builder.Build<pir::ParameterOp>(name, type_of(type));
  variable->set_attribute("persistable", all_of(1, true));
  return variable->result(0);
}

}  // namespace paddle_ngraph
