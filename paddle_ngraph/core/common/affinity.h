// CPU affinity of the process: the cores that its threads may use.
#pragma once

namespace paddle_ngraph {

// Number of cores in the affinity mask, without regard to CPU quotas. At least 1.
int cores_by_affinity();

}  // namespace paddle_ngraph
