// How many threads compute.
#pragma once

#include <string>

namespace paddle_ngraph {

// FLAGS_ngraph_num_threads; where it is 0, the cores that the process may use: those of its
// affinity, and no more than its control groups grant it time for, rounded.
int num_threads();

// The same as a setting of the engine: 0 where nothing but the affinity limits it, which the engine
// knows better (cores that share a unit, for one).
int engine_threads();

// Cores that the CPU quotas under `root`, where control groups are mounted, grant to the group
// `path` and those around it (cgroup v2 "cpu.max", v1 "cpu.cfs_quota_us"); 0 where nothing limits
// them.
int cores_by_quota(const std::string& root, const std::string& path);

}  // namespace paddle_ngraph
