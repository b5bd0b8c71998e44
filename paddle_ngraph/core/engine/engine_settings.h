// Build settings of an engine, which follow from its graph and the flags.
#pragma once

#include <string>

#include "core/engine/graph_header.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// The settings with which a graph is built under the current flags. Throws InvalidInput for an
// unknown precision or weight format.
Settings settings_of(const GraphHeader& header);

// Number of threads of a run of a function that is built with these settings.
int threads_of(const Settings& settings);

// The precision of a value of FLAGS_ngraph_precision. Throws InvalidInput for another text.
Precision precision_named(const std::string& name);

// The value of FLAGS_ngraph_precision that selects this precision.
const char* name_of(Precision precision);

// The value of FLAGS_ngraph_weights that selects this format.
const char* name_of(WeightFormat format);

}  // namespace paddle_ngraph
