// Base classes of the OpenVINO extension operators. To add one: derive from ExtensionOpOf<the class
// itself, its attributes>, implement `infer` and `compute`, and list the class in extension_ops.cc.
// bridge.extension() creates a node of it; the CPU plugin, which has no kernel for it, calls
// `evaluate`.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <openvino/core/extension.hpp>
#include <openvino/op/op.hpp>

#include "core/common/error.h"

namespace paddle_ngraph {

class ExtensionOp : public ov::op::Op {
 public:
  OPENVINO_OP("ExtensionOp", "paddle_ngraph");

  using ov::op::Op::Op;

  bool has_evaluate() const override { return true; }
  void validate_and_infer_types() override;
  bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

 protected:
  // Whether the operator supports dynamic shapes; else `infer` sees only static shapes.
  virtual bool supports_dynamic_shapes() const { return false; }

  // The run-time shape of outputs with a dynamic shape: by default that of the first input.
  virtual ov::Shape dynamic_output_shape(const ov::TensorVector& inputs) const;

  // Checks the inputs and sets the types of the outputs.
  virtual void infer() = 0;

  // Computes the outputs, whose shapes and memory are set.
  virtual void compute(const ov::TensorVector& inputs, ov::TensorVector* outputs) const = 0;

  // Throws an NgraphError that names the operator if `condition` is false.
  template <typename... Parts>
  void require(bool condition, const Parts&... parts) const {
    if (!condition) throw NgraphError(concat(get_type_name(), ": ", parts...));
  }

  // Requires input `index` to be float32 and of this rank.
  void require_float(size_t index, size_t rank) const;

  // Requires input `index` to be float32, of one or more rows: [..., L].
  void require_rows(size_t index) const;

  // Requires input `index` to be int32 or int64 indices. The plugin converts int64 to int32.
  void require_positions(size_t index, size_t rank) const;

 private:
  void require_rank(size_t index, size_t rank) const;
};

// An operator with attributes: a struct whose `visit` calls its argument with the name and the
// value of each.
template <typename Attributes, typename Base = ExtensionOp>
class OperatorWith : public Base {
 public:
  using Base::Base;

  bool visit_attributes(ov::AttributeVisitor& visitor) override {
    attributes_.visit([&](const char* name, auto& value) { visitor.on_attribute(name, value); });
    return true;
  }

 protected:
  const Attributes& attributes() const { return attributes_; }
  Attributes& attributes() { return attributes_; }
  void copy_attributes(const OperatorWith& other) { attributes_ = other.attributes_; }

 private:
  Attributes attributes_;
};

// An operator that shares `Base`, an OperatorWith or a class derived from one, with other
// operators.
template <typename Operator, typename Base>
class OperatorIn : public Base {
 public:
  using Base::Base;

  std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override {
    auto copy = std::make_shared<Operator>();
    static_cast<OperatorIn&>(*copy).copy_attributes(*this);
    copy->set_arguments(inputs);
    copy->constructor_validate_and_infer_types();
    return copy;
  }
};

struct NoAttributes {
  template <typename Visit>
  void visit(const Visit&) {}
};

// An operator that shares no base with others.
template <typename Operator, typename Attributes = NoAttributes>
using ExtensionOpOf = OperatorIn<Operator, OperatorWith<Attributes>>;

// All extension operators, for code that reads a function that may contain one.
std::vector<ov::Extension::Ptr> extension_ops();

}  // namespace paddle_ngraph
