// The start of the core's OpenVINO, for Python code that is about to use OpenVINO by itself.
#pragma once

namespace paddle_ngraph {

// Creates the core's OpenVINO, unless it exists: its plugin then has the settings of the process
// that its first use determines (see kernel_caches.h).
void start_openvino();

}  // namespace paddle_ngraph
