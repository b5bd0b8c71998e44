// Number of threads that compute: cores, CPU quotas and flags.
#pragma once

#include <string>

namespace paddle_ngraph {

// Number of cores that the process may use: the cores of its affinity mask, limited by the
// (rounded) CPU quota of its control groups.
int usable_cores();

// For tests: whether the requested number of threads is used even if there are fewer cores.
void allow_more_threads_than_cores(bool allowed);

// FLAGS_ngraph_num_threads, or all usable cores if the flag is 0. More threads than cores would
// alternate on the cores, and threads that wait for others would take time from these.
int num_threads();

// num_threads() as a setting of OpenVINO. 0, OpenVINO's own choice, if only the affinity limits the
// count, and to more than one core: OpenVINO handles the affinity better (for example, hardware
// threads that share a core).
int engine_threads();

// Cores that the CPU quotas of this process grant, read once; 0 if there is no limit.
int cores_by_quota();
// Cores that the CPU quotas under `root`, where control groups are mounted, grant to the group
// `path` and its parents (cgroup v2 "cpu.max", v1 "cpu.cfs_quota_us"); 0 if there is no limit.
int cores_by_quota(const std::string& root, const std::string& path);

}  // namespace paddle_ngraph
