// Build settings of an engine, which follow from its graph and the flags.
#pragma once

#include "core/engine/graph_header.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Build settings according to the present flags. Throws InvalidInput for an unknown precision.
Settings settings_of(const GraphHeader& header);

// Number of threads of a function with these settings.
int threads_of(const Settings& settings);

// Value of FLAGS_ngraph_precision for this precision.
const char* name_of(Precision precision);

}  // namespace paddle_ngraph
