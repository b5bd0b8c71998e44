// How the shapes of an operator's results follow from its arguments, without running it.
#pragma once

#include <string>
#include <vector>

namespace paddle_ngraph {

struct ShapeRule {
  enum class Kind {
    kUnknown,
    kSame,       // each result has the shape of the first argument
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
    kGridSample,
    kRecurrent,
  };
  Kind kind = Kind::kUnknown;
  // The names of the operator's parameters, in order.
  std::vector<std::string> parameters;
  // Parameters whose integers may differ from call to call of one trace (open_traces.h).
  std::vector<std::string> sizes;
  // Parameters whose numbers may differ where the first argument is a float32 tensor.
  std::vector<std::string> numbers;
};

}  // namespace paddle_ngraph
