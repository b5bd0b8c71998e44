#include "core/lazy/inferred_shapes.h"

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paddle/fluid/pir/dialect/operator/interface/infermeta.h"
#include "paddle/fluid/pir/dialect/operator/interface/op_yaml_info.h"
#include "paddle/fluid/pir/dialect/operator/utils/op_yaml_info_parser.h"
#include "paddle/phi/core/dense_tensor.h"
#include "paddle/phi/core/infermeta_utils.h"
#include "paddle/pir/include/core/ir_context.h"
#include "paddle/pir/include/core/op_info.h"

#include "core/lazy/python_arguments.h"
#include "core/lazy/result_shapes.h"
#include "core/paddle/call_interception.h"

namespace paddle_ngraph {

namespace {

// A parameter of an operator: a tensor, a list of tensors, or an attribute of a type of PIR.
struct Declared {
  std::string name, type;
};

// Paddle's declaration of an operator, as far as its shape inference needs.
struct Declaration {
  void (*infer)(phi::InferMetaContext*) = nullptr;  // null: Paddle has no such operator
  std::vector<Declared> tensors, attributes, results;
};

constexpr char kTensorList[] = "pir::VectorType<paddle::dialect::DenseTensorType>";

Declaration read_declaration(const std::string& name) {
  Declaration found;
  const auto info = pir::IrContext::Instance()->GetRegisteredOpInfo(name);
  if (!info) return found;
  const auto* yaml = info.GetInterfaceImpl<paddle::dialect::OpYamlInfoInterface>();
  const auto* inference = info.GetInterfaceImpl<paddle::dialect::InferMetaInterface>();
  if (yaml == nullptr || inference == nullptr) return found;
  const paddle::dialect::OpYamlInfoParser parsed(yaml->get_op_info_(name));
  for (const auto& each : parsed.TensorParams()) {
    found.tensors.push_back({each, parsed.GetInputType(parsed.InputName2Id().at(each))});
  }
  for (const auto& each : parsed.AttrParams()) {
    const bool may_be_tensor = parsed.InputName2Id().count(each) > 0;
    found.attributes.push_back(
        {each, may_be_tensor ? parsed.TensorAttrTypeName(each) : parsed.AttrTypeName(each)});
  }
  for (uint32_t i = 0; i < parsed.OutputNames().size(); ++i) {
    found.results.push_back({parsed.OutputNames()[i], parsed.GetOutputType(i)});
  }
  found.infer = inference->infer_meta_;
  return found;
}

const Declaration& declaration_of(const std::string& name) {
  static std::unordered_map<std::string, Declaration> known;  // guarded by the GIL
  const auto found = known.find(name);
  return found != known.end() ? found->second
                              : known.emplace(name, read_declaration(name)).first->second;
}

// A call's arguments as Paddle's shape inference takes them.
class Inference {
 public:
  Inference(const TracedCall& call, const PyObjects& given) : call_(call), given_(given) {}

  bool run(ResultShapes* found) {
    const Declaration& declared = declaration_of("pd_op." + call_.function->name);
    if (declared.infer == nullptr) return false;
    for (const Declared& each : declared.tensors) {
      if (!add_tensors(each)) return false;
    }
    for (const Declared& each : declared.attributes) {
      PyObject* const argument = argument_of(each.name);
      if (argument == nullptr || !add_attribute(each.type, argument)) return false;
    }
    std::vector<phi::DenseTensor> results;
    if (!add_results(declared.results, &results)) return false;
    declared.infer(&context_);
    for (int i = 0; i < call_.num_results(); ++i) found->push_back(results[i].dims());
    return std::all_of(found->begin(), found->end(), [](const phi::DDim& shape) {
      return std::all_of(shape.Get(), shape.Get() + shape.size(),
                         [](auto size) { return size > 0; });
    });
  }

 private:
  // The argument, or the default value of the parameter; null without these.
  PyObject* argument_of(const std::string& name) const {
    const ShapeRule& rule = call_.function->rule.shape_rule;
    for (size_t i = 0; i < given_.size(); ++i) {
      const auto keyword = call_.keyword_of(i);
      const auto* const given_name = keyword ? keyword->c_str() : nullptr;
      if (parameter_of(rule, i, given_name) == name) return given_[i];
    }
    for (const auto& [parameter, value] : rule.defaults) {
      if (parameter == name) return value.ptr();
    }
    return nullptr;
  }

  bool add_tensors(const Declared& declared) {
    PyObject* const argument = argument_of(declared.name);
    if (argument == nullptr) return false;
    if (declared.type != kTensorList) {
      if (argument != Py_None && !is_tensor(argument)) return false;
      context_.EmplaceBackInput(meta_of(argument));
      return true;
    }
    if (!is_sequence(argument) || is_slice(argument)) return false;
    paddle::small_vector<phi::MetaTensor, phi::kInputSmallVectorSize> members;
    for (PyObject* member : sequence_items(argument)) {
      if (!is_tensor(member)) return false;
      members.push_back(meta_of(member));
    }
    context_.EmplaceBackInputs(std::move(members));
    return true;
  }

  // Of an absent tensor, too, which is None. Lazy tensors have metadata.
  static phi::MetaTensor meta_of(PyObject* tensor) {
    if (tensor == Py_None) return phi::MetaTensor(static_cast<phi::DenseTensor*>(nullptr));
    return phi::MetaTensor(*tensor_of(tensor).impl());
  }

  bool add_attribute(const std::string& type, PyObject* given) {
    if (type == "pir::BoolAttribute") return PyBool_Check(given) && add(given == Py_True);
    if (type == "pir::StrAttribute") {
      return PyUnicode_Check(given) && add(std::string(PyUnicode_AsUTF8(given)));
    }
    if (type == "pir::FloatAttribute" || type == "pir::DoubleAttribute") {
      if (!PyFloat_CheckExact(given) && !PyLong_CheckExact(given)) return false;
      const double number = PyFloat_AsDouble(given);
      return type == "pir::FloatAttribute" ? add(static_cast<float>(number)) : add(number);
    }
    std::vector<int64_t> integers;
    if (!append_integers(given, &integers)) return false;
    const std::vector<int> narrow(integers.begin(), integers.end());
    if (type == "pir::ArrayAttribute<pir::Int32Attribute>") return add(narrow);
    if (type == "pir::ArrayAttribute<pir::Int64Attribute>") return add(integers);
    if (type == "paddle::dialect::IntArrayAttribute") return add(phi::IntArray(integers));
    if (integers.size() != 1 || is_sequence(given)) return false;
    if (type == "pir::Int32Attribute") return add(narrow[0]);
    if (type == "pir::Int64Attribute") return add(integers[0]);
    return type == "paddle::dialect::ScalarAttribute" && add(phi::Scalar(integers[0]));
  }

  // The integer, or the integers of a list; false for others, and beyond 32 bits.
  static bool append_integers(PyObject* given, std::vector<int64_t>* found) {
    const PyObjects items =
        is_sequence(given) && !is_slice(given) ? sequence_items(given) : PyObjects{given};
    return std::all_of(items.begin(), items.end(), [found](PyObject* item) {
      if (!PyLong_CheckExact(item)) return false;
      int overflow = 0;
      found->push_back(PyLong_AsLongLongAndOverflow(item, &overflow));
      return overflow == 0 && found->back() == static_cast<int>(found->back());
    });
  }

  template <typename Attribute>
  bool add(Attribute attribute) {
    context_.EmplaceBackAttr(phi::Attribute(std::move(attribute)));
    return true;
  }

  // A list of results has as many members as the call has results.
  bool add_results(const std::vector<Declared>& declared, std::vector<phi::DenseTensor>* results) {
    const auto number = static_cast<size_t>(call_.num_results());
    const auto is_list = [](const Declared& each) { return each.type == kTensorList; };
    const bool has_list = std::any_of(declared.begin(), declared.end(), is_list);
    if (has_list ? declared.size() != 1 : declared.size() < number) return false;
    results->resize(has_list ? number : declared.size());
    paddle::small_vector<phi::MetaTensor, phi::kOutputSmallVectorSize> members;
    for (phi::DenseTensor& each : *results) members.push_back(phi::MetaTensor(&each));
    if (has_list) {
      context_.EmplaceBackOutputs(std::move(members));
    } else {
      for (const phi::MetaTensor& each : members) context_.EmplaceBackOutput(each);
    }
    return true;
  }

  const TracedCall& call_;
  const PyObjects& given_;
  phi::InferMetaContext context_{phi::MetaConfig(/*is_runtime=*/true, false)};
};

}  // namespace

bool infer_result_shapes(const TracedCall& call, const PyObjects& given, ResultShapes* found) {
  try {
    return Inference(call, given).run(found);
  } catch (const std::exception&) {  // Paddle would raise, which the recorded call does
    return false;
  }
}

}  // namespace paddle_ngraph
