#include "core/ov/extension_ops.h"

#include <openvino/core/op_extension.hpp>

#include "core/ov/arg_max_op.h"
#include "core/ov/attention_op.h"
#include "core/ov/batch_norm_ops.h"
#include "core/ov/bfloat16_op.h"
#include "core/ov/check_range_op.h"
#include "core/ov/checked_ops.h"
#include "core/ov/conv_ops.h"
#include "core/ov/division_ops.h"
#include "core/ov/embedding_grad_op.h"
#include "core/ov/end_after_error_op.h"
#include "core/ov/first_run_trim.h"
#include "core/ov/gemm_op.h"
#include "core/ov/kernel_call_op.h"
#include "core/ov/layer_norm_ops.h"
#include "core/ov/optimizer_ops.h"
#include "core/ov/pin_values_op.h"
#include "core/ov/pool_ops.h"
#include "core/ov/reorder_op.h"
#include "core/ov/shape_barrier_op.h"
#include "core/ov/softmax_ops.h"
#include "core/ov/sort_op.h"

namespace paddle_ngraph {

void ExtensionOp::validate_and_infer_types() {
  for (size_t i = 0; i < get_input_size(); ++i) {
    require(supports_dynamic_shapes() || get_input_partial_shape(i).is_static(), "input ", i,
            " has an open shape");
  }
  infer();
}

ov::Shape ExtensionOp::dynamic_output_shape(const ov::TensorVector& inputs) const {
  return inputs.front().get_shape();
}

bool ExtensionOp::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
  FirstRunTrim::on_operator_start();
  require(inputs.size() == get_input_size() && outputs.size() == get_output_size(),
          "evaluated with ", inputs.size(), " inputs and ", outputs.size(), " outputs");
  for (size_t i = 0; i < inputs.size(); ++i) {
    require(get_input_partial_shape(i).compatible(inputs[i].get_shape()), "input ", i,
            " has shape ", inputs[i].get_shape(), ", not ", get_input_partial_shape(i));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& shape = get_output_partial_shape(i);
    outputs[i].set_shape(shape.is_static() ? shape.to_shape() : dynamic_output_shape(inputs));
  }
  compute(inputs, &outputs);
  return true;
}

void ExtensionOp::require_rank(size_t index, size_t rank) const {
  const auto& shape = get_input_partial_shape(index);
  require(shape.rank() == static_cast<int64_t>(rank), "input ", index, " has rank ", shape.rank(),
          ", not ", rank);
}

void ExtensionOp::require_float(size_t index, size_t rank) const {
  require(get_input_element_type(index) == ov::element::f32, "input ", index, " is ",
          get_input_element_type(index), ", not f32");
  require_rank(index, rank);
}

void ExtensionOp::require_rows(size_t index) const {
  const auto& shape = get_input_partial_shape(index);
  require(shape.rank().is_static() && shape.size() > 0, "input ", index, " has rank ", shape.rank(),
          ", not 1 or more");
  require_float(index, shape.size());
}

void ExtensionOp::require_positions(size_t index, size_t rank) const {
  const auto type = get_input_element_type(index);
  require(type == ov::element::i32 || type == ov::element::i64, "input ", index, " is ", type,
          ", not i32 or i64");
  require_rank(index, rank);
}

std::vector<ov::Extension::Ptr> extension_ops() {
  return {
      std::make_shared<ov::OpExtension<Adam>>(),
      std::make_shared<ov::OpExtension<ArgMax>>(),
      std::make_shared<ov::OpExtension<Attention>>(),
      std::make_shared<ov::OpExtension<BatchNorm>>(),
      std::make_shared<ov::OpExtension<BatchNormGrad>>(),
      std::make_shared<ov::OpExtension<Bfloat16Gemm>>(),
      std::make_shared<ov::OpExtension<CheckRange>>(),
      std::make_shared<ov::OpExtension<CheckedAdd>>(),
      std::make_shared<ov::OpExtension<CheckedMultiply>>(),
      std::make_shared<ov::OpExtension<CheckedSubtract>>(),
      std::make_shared<ov::OpExtension<BlockedConvolution>>(),
      std::make_shared<ov::OpExtension<BlockedConvolutionDataGrad>>(),
      std::make_shared<ov::OpExtension<BlockedConvolutionFilterGrad>>(),
      std::make_shared<ov::OpExtension<EmbeddingGrad>>(),
      std::make_shared<ov::OpExtension<EndAfterError>>(),
      std::make_shared<ov::OpExtension<Gemm>>(),
      std::make_shared<ov::OpExtension<KernelCall>>(),
      std::make_shared<ov::OpExtension<PinValues>>(),
      std::make_shared<ov::OpExtension<LayerNorm>>(),
      std::make_shared<ov::OpExtension<LayerNormGrad>>(),
      std::make_shared<ov::OpExtension<PaddleMaxPool>>(),
      std::make_shared<ov::OpExtension<PaddleMaxPoolGrad>>(),
      std::make_shared<ov::OpExtension<MaxPoolWithIndex>>(),
      std::make_shared<ov::OpExtension<MaxPoolWithIndexGrad>>(),
      std::make_shared<ov::OpExtension<PaddleAvgPool>>(),
      std::make_shared<ov::OpExtension<PaddleAvgPoolGrad>>(),
      std::make_shared<ov::OpExtension<Momentum>>(),
      std::make_shared<ov::OpExtension<ShapeBarrier>>(),
      std::make_shared<ov::OpExtension<BlockedReorder>>(),
      std::make_shared<ov::OpExtension<Sgd>>(),
      std::make_shared<ov::OpExtension<RowSoftmax>>(),
      std::make_shared<ov::OpExtension<RowSoftmaxGrad>>(),
      std::make_shared<ov::OpExtension<Sort>>(),
      std::make_shared<ov::OpExtension<FloorDivide>>(),
      std::make_shared<ov::OpExtension<Remainder>>(),
      std::make_shared<ov::OpExtension<FromBfloat16>>(),
      std::make_shared<ov::OpExtension<RoundToBfloat16>>(),
      std::make_shared<ov::OpExtension<ToBfloat16>>(),
      std::make_shared<ov::OpExtension<ToChannelsLast>>(),
  };
}

}  // namespace paddle_ngraph

OPENVINO_CREATE_EXTENSIONS(paddle_ngraph::extension_ops());
