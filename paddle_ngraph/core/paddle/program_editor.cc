#include "core/paddle/program_editor.h"

#include <map>
#include <set>

#include "paddle/fluid/pir/dialect/operator/interface/op_yaml_info.h"
#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/builder.h"
#include "paddle/pir/include/core/builtin_attribute.h"
#include "paddle/pir/include/core/builtin_op.h"
#include "paddle/pir/include/core/builtin_type.h"
#include "paddle/pir/include/core/ir_context.h"
#include "paddle/pir/include/core/ir_mapping.h"

#include "core/common/error.h"
#include "core/paddle/ngraph_engine_op.h"

namespace paddle_ngraph {

namespace {

pir::Attribute bool_array(pir::IrContext* context, size_t size, bool value) {
  return pir::ArrayAttribute::get(
      context, std::vector<pir::Attribute>(size, pir::BoolAttribute::get(context, value)));
}

pir::Attribute int_array(pir::IrContext* context, const std::vector<int>& values) {
  std::vector<pir::Attribute> attributes;
  for (int value : values) attributes.push_back(pir::Int32Attribute::get(context, value));
  return pir::ArrayAttribute::get(context, attributes);
}

pir::Value combine(pir::Builder* builder, const std::vector<pir::Value>& values) {
  return values.empty() ? pir::Value() : builder->Build<pir::CombineOp>(values).out();
}

std::vector<pir::Type> types_of(const std::vector<pir::Value>& values) {
  std::vector<pir::Type> types;
  for (const auto& value : values) types.push_back(value.type());
  return types;
}

pir::Type empty_tensor_type(pir::IrContext* context) {
  return pir::DenseTensorType::get(context, pir::Float32Type::get(context), common::DDim({0}),
                                   common::DataLayout::NCHW, {}, 0);
}

pir::OpInfo info_of(pir::IrContext* context, const std::string& name) {
  auto info = context->GetRegisteredOpInfo(name);
  if (!info) throw NgraphError(concat("the operator ", name, " is not registered with Paddle"));
  return info;
}

// Replaces `op`, which is erased, with an operator that has at least as many results.
void replace_op(pir::Operation* op, pir::Operation* other) {
  pir::Builder builder(pir::IrContext::Instance(), op->GetParent());
  builder.set_insertion_point(op);
  builder.Insert(other);
  for (uint32_t i = 0; i < op->num_results(); ++i) {
    op->result(i).ReplaceAllUsesWith(other->result(i));
  }
  op->GetParent()->erase(*op);
}

// Removes the terminator of the block of a loop or branch; returns the values that it yielded.
std::vector<pir::Value> take_terminator_operands(pir::Block* block) {
  if (block->empty() || block->back().name() != "cf.yield") return {};
  auto terminator_operands = block->back().operands_source();
  block->pop_back();
  return terminator_operands;
}

void append_terminator(pir::IrContext* context, pir::Block* block,
                       const std::vector<pir::Value>& terminator_operands) {
  pir::Builder(context, block)
      .Insert(pir::Operation::Create(terminator_operands, {}, {}, info_of(context, "cf.yield")));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> inplace_pairs(const pir::Operation& op) {
  std::vector<std::pair<std::string, std::string>> pairs;
  auto interface = op.dyn_cast<paddle::dialect::OpYamlInfoInterface>();
  if (!interface) return pairs;
  const auto info = interface.GetOpInfo();
  // Paddle lists (output, input) for operators in place; the result has (input, output).
  for (const auto& [output, input] : std::get<3>(info).inplace) {
    pairs.emplace_back(input, output);
  }
  return pairs;
}

std::vector<pir::Value> insert_ngraph_engine(pir::Block* block, pir::Operation* anchor,
                                             const std::vector<pir::Value>& inputs,
                                             const std::vector<pir::Value>& states,
                                             const std::vector<pir::Value>& outputs,
                                             const std::string& graph,
                                             const std::vector<int>& interval) {
  auto* context = pir::IrContext::Instance();
  const size_t capacity = output_capacity(outputs.size());
  const std::string name = concat("custom_op.ngraph_engine_", capacity, "_");
  auto info = info_of(context, name);

  pir::Builder builder(context, block);
  if (anchor != nullptr) builder.set_insertion_point(anchor);
  std::vector<pir::Value> operands{combine(&builder, inputs), combine(&builder, states)};
  std::vector<pir::Type> types = types_of(outputs);
  types.resize(capacity, empty_tensor_type(context));
  types.push_back(states.empty() ? pir::Type()
                                 : pir::Type(pir::VectorType::get(context, types_of(states))));
  pir::AttributeMap attributes{
      {"graph", pir::StrAttribute::get(context, graph)},
      {"interval", int_array(context, interval)},
      {"stop_gradient", bool_array(context, types.size(), true)},
  };
  auto* op = pir::Operation::Create(operands, attributes, types, info);
  builder.Insert(op);

  std::vector<pir::Value> values;
  for (size_t i = 0; i < outputs.size(); ++i) values.push_back(op->result(i));
  if (!states.empty()) {
    auto split = builder.Build<pir::SplitOp>(op->result(capacity)).outputs();
    values.insert(values.end(), split.begin(), split.end());
  }
  return values;
}

pir::Value insert_combine(pir::Operation* anchor, const std::vector<pir::Value>& values) {
  pir::Builder builder(pir::IrContext::Instance(), anchor->GetParent());
  builder.set_insertion_point(anchor);
  return combine(&builder, values);
}

std::vector<pir::Value> insert_split(pir::Operation* anchor, pir::Value list) {
  pir::Builder builder(pir::IrContext::Instance(), anchor->GetParent());
  builder.set_insertion_point(anchor);
  return builder.Build<pir::SplitOp>(list).outputs();
}

std::vector<pir::Value> insert_operator(pir::Operation* anchor, const std::string& name,
                                        const std::vector<pir::Value>& operands,
                                        const std::vector<pir::Value>& like,
                                        const pir::AttributeMap& attributes) {
  auto* context = pir::IrContext::Instance();
  auto info = info_of(context, name);
  std::vector<pir::Type> types = types_of(like);
  pir::AttributeMap all = attributes;
  all["stop_gradient"] = bool_array(context, types.size(), true);
  pir::Builder builder(context, anchor->GetParent());
  builder.set_insertion_point(anchor);
  auto* op = pir::Operation::Create(operands, all, types, info);
  builder.Insert(op);
  return op->results();
}

pir::Operation* replace_operator(pir::Operation* op, const std::string& name,
                                 const std::vector<pir::Value>& operands) {
  auto* context = pir::IrContext::Instance();
  auto* other = pir::Operation::Create(operands, op->attributes(), types_of(op->results()),
                                       info_of(context, name));
  replace_op(op, other);
  return other;
}

pir::Operation* add_carried_value(pir::Operation* op, pir::Value value) {
  auto* context = pir::IrContext::Instance();
  const bool repeats = op->name() == "pd_op.while";
  std::vector<pir::Value> operands = op->operands_source();
  if (repeats) operands.push_back(value);
  std::vector<pir::Type> types = types_of(op->results());
  types.push_back(value.type());
  pir::AttributeMap attributes = op->attributes();
  attributes["stop_gradient"] = bool_array(context, types.size(), true);
  auto* wider = pir::Operation::Create(operands, attributes, types, op->info(), op->num_regions());
  for (uint32_t i = 0; i < op->num_regions(); ++i) {
    wider->region(i).TakeBody(std::move(op->region(i)));
    pir::Block& block = wider->region(i).front();
    pir::Value given = value;
    if (repeats) {
      given = block.AddArg(value.type());
      given.set_attribute("stop_gradient", pir::BoolAttribute::get(context, true));
    }
    auto terminator_operands = take_terminator_operands(&block);
    terminator_operands.push_back(given);
    append_terminator(context, &block, terminator_operands);
  }
  replace_op(op, wider);
  return wider;
}

pir::Operation* drop_carried_value(pir::Operation* loop, uint32_t index) {
  auto* context = pir::IrContext::Instance();
  std::vector<pir::Value> operands = loop->operands_source();
  // Loop-carried values follow operand 0, the condition of the loop.
  operands.erase(operands.begin() + 1 + index);
  std::vector<pir::Value> results = loop->results();
  results.erase(results.begin() + index);
  pir::AttributeMap attributes = loop->attributes();
  attributes["stop_gradient"] = bool_array(context, results.size(), true);
  auto* narrower = pir::Operation::Create(operands, attributes, types_of(results), loop->info(), 1);
  narrower->region(0).TakeBody(std::move(loop->region(0)));
  pir::Block& block = narrower->region(0).front();
  auto terminator_operands = take_terminator_operands(&block);
  terminator_operands.erase(terminator_operands.begin() + 1 + index);
  append_terminator(context, &block, terminator_operands);
  block.EraseArg(index);
  pir::Builder builder(context, loop->GetParent());
  builder.set_insertion_point(loop);
  builder.Insert(narrower);
  for (size_t i = 0; i < results.size(); ++i) results[i].ReplaceAllUsesWith(narrower->result(i));
  loop->GetParent()->erase(*loop);
  return narrower;
}

// Whether other parts of Paddle may refer to an operator: by name, or by its address.
static bool is_interface(const pir::Operation& op) {
  if (op.num_regions() > 0) return false;
  const std::string name = op.name();
  return op.num_operands() == 0 || name == "pd_op.fetch" || name == "builtin.shadow_output" ||
         name == "builtin.set_parameter";
}

// Equal for operators with equal names, attributes and types of results. Paddle keeps equal
// attributes and types once.
static std::string signature_of(const pir::Operation& op) {
  const std::map<std::string, pir::Attribute> attributes(op.attributes().begin(),
                                                         op.attributes().end());
  std::string signature = op.name();
  for (const auto& [name, attribute] : attributes) {
    signature += concat(" ", name, "=", reinterpret_cast<uintptr_t>(attribute.storage()));
  }
  for (uint32_t i = 0; i < op.num_results(); ++i) {
    signature += concat(" ", reinterpret_cast<uintptr_t>(op.result(i).type().storage()));
  }
  return signature;
}

void replace_contents(pir::Block* block, const pir::Program& contents) {
  std::vector<pir::Operation*> former(block->ops().rbegin(), block->ops().rend());
  std::map<std::string, std::vector<pir::Operation*>> interface;
  for (pir::Operation* op : former) {
    if (is_interface(*op)) interface[signature_of(*op)].push_back(op);
  }
  std::set<pir::Operation*> kept;
  pir::IrMapping mapping;
  for (const pir::Operation* op : contents.block()->ops()) {
    const auto found = is_interface(*op) ? interface.find(signature_of(*op)) : interface.end();
    if (found == interface.end() || found->second.empty()) {
      block->push_back(op->Clone(mapping, pir::CloneOptions::All()));
      continue;
    }
    pir::Operation* const same = found->second.back();
    found->second.pop_back();
    kept.insert(same);
    same->MoveTo(block, block->end());
    for (uint32_t i = 0; i < op->num_operands(); ++i) {
      same->operand(i).set_source(mapping.Lookup(op->operand_source(i)));
    }
    for (uint32_t i = 0; i < op->num_results(); ++i) mapping.Add(op->result(i), same->result(i));
  }
  for (pir::Operation* op : former) {
    if (kept.count(op) == 0) block->erase(*op);
  }
}

}  // namespace paddle_ngraph
