// How the shapes of an operator's results follow from its arguments, without running it.
#pragma once

#include <pybind11/pytypes.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace paddle_ngraph {

// The parameters of operators on which shapes of results depend.
enum class Parameter {
  kAdaptive,
  kAxes,
  kAxis,
  kCeilMode,
  kDataFormat,
  kDecreaseAxis,
  kDilations,
  kDownscaleFactor,
  kEnds,
  kEquation,
  kFilter,
  kFlatten,
  kGlobalPooling,
  kGrid,
  kGroups,
  kHiddenSize,
  kIndex,
  kIsBidirec,
  kK,
  kKeepdim,
  kKernelSize,
  kKernelSizes,
  kLabel,
  kMax,
  kMean,
  kMin,
  kNum,
  kNumClasses,
  kOutD,
  kOutH,
  kOutSize,
  kOutW,
  kOutputPadding,
  kOutputSize,
  kPaddingAlgorithm,
  kPaddings,
  kPerm,
  kPreState,
  kReduceAll,
  kReduction,
  kRepeatTimes,
  kRepeats,
  kScale,
  kScaleTensor,
  kSections,
  kShape,
  kSizeTensor,
  kStartAxis,
  kStarts,
  kStopAxis,
  kStrides,
  kTransposeX,
  kTransposeY,
  kUpscaleFactor,
  kValue,
  kWeight,
  kX,
  kY,
};

constexpr size_t kNumParameters = static_cast<size_t>(Parameter::kY) + 1;

// The indices of the arguments that a call passes to these parameters; -1: none.
using ParameterPlaces = std::array<int8_t, kNumParameters>;

struct ShapeRule {
  enum class Kind {
    kUnknown,
    kSame,       // each result has the shape of the first argument
    kAllSame,    // all tensors among the arguments have the same shape, which each result has, too
    kFirstSame,  // the first result has; the others have that of the second argument
    kBroadcast,  // of all tensors among the arguments
    kReshape,
    kTranspose,
    kConcat,
    kStack,
    kSplit,
    kUnbind,
    kSqueeze,
    kUnsqueeze,
    kFlatten,
    kExpand,
    kExpandAs,
    kTile,
    kPad,
    kMatmul,
    kLinear,
    kSlice,
    kSubscript,
    kReduction,
    kTopK,
    kGather,
    kGatherNd,
    kEmbedding,
    kOneHot,
    kLikeIndex,  // the result has the shape of the second argument
    kConvolution,
    kPool,
    kInterpolation,
    kPixelShuffle,
    kPixelUnshuffle,
    kGridSample,
    kRecurrent,
    kDot,
    kMatrixVector,
    kSwiglu,
    kDivergence,
    kLikelihood,
    kEinsum,
    kTransposedConvolution,
    kUnfold,
    kMeshgrid,
    kRepeat,
    kCrossEntropy,
    kClip,      // the first argument's shape, if the minimum is not above the maximum
    kAssign,    // the first argument's shape, if the value can be assigned to the selected part
    kFill,      // the shape is an argument
    kInferred,  // by Paddle's shape inference (InferMeta)
  };
  Kind kind = Kind::kUnknown;
  // The names of the operator's parameters, in order.
  std::vector<std::string> parameters;
  // Parameters whose integers may differ from call to call of one trace (open_traces.h).
  std::vector<std::string> sizes;
  // Parameters whose numbers may differ where the first argument is a float32 tensor.
  std::vector<std::string> numbers;
  // The values of parameters, by name, that a call may leave out.
  std::vector<std::pair<std::string, pybind11::object>> defaults;
};

}  // namespace paddle_ngraph
