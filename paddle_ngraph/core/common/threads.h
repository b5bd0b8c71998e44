// How many threads compute.
#pragma once

#include <string>

namespace paddle_ngraph {

// The number of cores that the process may use: those of its affinity mask, limited by the
// (rounded) CPU quota of its control groups.
int usable_cores();

// For tests: whether as many threads are used as asked for, even if there are fewer cores.
void allow_more_threads_than_cores(bool allowed);

// FLAGS_ngraph_num_threads, or all usable cores if that is 0. More threads than cores would take
// turns on them, and those that wait for the others would take time from these.
int num_threads();

// The same as a setting of the engine: 0 if only the affinity limits it, to more than one core. The
// engine takes that into account better itself (for example, hardware threads that share a core).
int engine_threads();

// Cores that the CPU quotas under `root`, where control groups are mounted, grant to the group
// `path` and its parents (cgroup v2 "cpu.max", v1 "cpu.cfs_quota_us"); 0 if there is no limit.
int cores_by_quota(const std::string& root, const std::string& path);

}  // namespace paddle_ngraph
