#include "core/common/threads.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <limits>

#include "core/common/affinity.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

double ratio(double quota, double period) {
  return quota > 0 && period > 0 ? quota / period : kUnlimited;
}

// CPU quota of one control group (cgroup), in cores.
double quota_of(const std::string& folder) {
  double quota = 0, period = 0;
  // Version 2 of control groups writes "max 100000" if there is no limit: no number is read.
  if (std::ifstream file(folder + "/cpu.max"); file >> quota >> period) return ratio(quota, period);
  std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
  std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  return ratio(quota, period);
}

// The minimum of the CPU quotas of a control group and its ancestors.
double min_quota(const std::string& root, std::string path) {
  double least = quota_of(root);
  for (; path.size() > 1; path.erase(path.rfind('/')))
    least = std::min(least, quota_of(root + path));
  return least;
}

int granted_cores() {
  int cores = 0;
  std::ifstream groups("/proc/self/cgroup");  // lines "number:controllers:/path"
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_cpu = ("," + controllers + ",").find(",cpu,") != std::string::npos;
    if (!controllers.empty() && !is_cpu) continue;
    const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    const int limit = cores_by_quota(root, line.substr(second + 1));
    if (limit > 0) cores = cores > 0 ? std::min(cores, limit) : limit;
  }
  return cores;
}

std::atomic<bool> more_than_cores{false};

}  // namespace

int cores_by_quota() {
  static const int granted = granted_cores();
  return granted;
}

int usable_cores() {
  const int granted = cores_by_quota(), usable = cores_by_affinity();
  return granted > 0 ? std::min(granted, usable) : usable;
}

void allow_more_threads_than_cores(bool allowed) { more_than_cores = allowed; }

int num_threads() {
  const int wanted = FLAGS_ngraph_num_threads;
  if (wanted <= 0) return usable_cores();
  return more_than_cores ? wanted : std::min(wanted, usable_cores());
}

int engine_threads() {
  if (FLAGS_ngraph_num_threads > 0) return num_threads();
  const int granted = cores_by_quota(), usable = cores_by_affinity();
  if (usable == 1) return 1;
  return granted > 0 && granted < usable ? granted : 0;
}

int cores_by_quota(const std::string& root, const std::string& path) {
  const double quota = min_quota(root, path);
  return quota == kUnlimited ? 0 : std::max(1, static_cast<int>(std::lround(quota)));
}

}  // namespace paddle_ngraph
