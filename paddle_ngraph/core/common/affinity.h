// The cores that the system lets this process use.
#pragma once

namespace paddle_ngraph {

// How many; quotas do not count. At least 1.
int cores_by_affinity();

}  // namespace paddle_ngraph
