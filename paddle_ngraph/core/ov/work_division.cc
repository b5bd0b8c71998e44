#include "core/ov/work_division.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

namespace paddle_ngraph {

namespace {

// Cost of starting a task (some microseconds), as a number of multiplications.
constexpr double kTaskCostMultiplies = 1 << 16;
// Factor for the elements of an operand that tasks copy: besides the kernel's access, the copy
// reads and writes each element once.
constexpr double kCopyCostFactor = 3;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Numbers of chunks along an axis that are worth trying: for each size of the largest chunk, the
// smallest number.
std::vector<int64_t> candidates(const Axis& axis) {
  std::vector<int64_t> result{1};
  for (int64_t size = axis.units; size > 1;) {
    size = std::min(size - 1, ceil_div(axis.units, result.back() + 1));
    result.push_back(ceil_div(axis.units, size));
  }
  return result;
}

class Search {
 public:
  Search(const Work& work, int64_t threads)
      : work_(work), threads_(threads), parts_(work.axes.size(), 1), best_(parts_) {
    for (const auto& axis : work.axes) candidates_.push_back(candidates(axis));
    try_axis(0);
  }

  const std::vector<int64_t>& best() const { return best_; }

 private:
  void try_axis(size_t axis) {
    if (axis == parts_.size()) return try_parts();
    for (int64_t parts : candidates_[axis]) {
      parts_[axis] = parts;
      try_axis(axis + 1);
    }
    parts_[axis] = 1;
  }

  void try_parts() {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const int needed = work_.axes[i].needs;
      if (parts_[i] > 1 && needed != kNone && !is_in_units(needed)) return;
    }
    const double time = time_of();
    if (time >= best_time_) return;
    best_time_ = time;
    best_ = parts_;
  }

  bool is_in_units(int axis) const { return parts_[axis] == work_.axes[axis].units; }

  bool needs_copy(const Axis& axis) const {
    if (axis.copied_unless == kNone) return false;
    return axis.copied_unless == kAlways || !is_in_units(axis.copied_unless);
  }

  // The elements of an operand that the largest task needs, multiplied by the number of times they
  // are read or written.
  double elements_of(const WorkOperand& operand, bool reads) const {
    double elements = operand.elements;
    bool is_copied = false;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Axis& axis = work_.axes[i];
      if (parts_[i] == 1 || (operand.axes >> i & 1U) == 0) continue;
      const auto units =
          static_cast<double>(ceil_div(axis.units, parts_[i])) + (reads ? axis.overlap : 0);
      elements *= std::min(1.0, units / static_cast<double>(axis.units));
      is_copied = is_copied || needs_copy(axis);
    }
    return operand.is_copied && is_copied ? kCopyCostFactor * elements : elements;
  }

  double time_of() const {
    double multiplies = work_.multiplies;
    double tasks = 1, partials = 1;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Axis& axis = work_.axes[i];
      const auto parts = static_cast<double>(parts_[i]);
      multiplies *= static_cast<double>(ceil_div(axis.units, parts_[i])) /
                    static_cast<double>(std::max<int64_t>(axis.units, 1));
      tasks *= parts;
      if (axis.is_summed) partials *= parts;
    }
    double elements = elements_of(work_.result, false);
    for (const auto& operand : work_.operands) elements += elements_of(operand, true);
    const auto threads = static_cast<double>(threads_);
    const auto rounds = static_cast<double>(ceil_div(static_cast<int64_t>(tasks), threads_));
    double time = rounds * (multiplies + elements * kMultipliesPerStep + kTaskCostMultiplies);
    // Adds the estimated time of the sum of partial results, which reads each of them, and is
    // divided among threads, too.
    if (partials > 1) {
      time += kMultipliesPerStep * (partials + 1) * work_.result.elements / threads +
              kTaskCostMultiplies;
    }
    return time;
  }

  const Work& work_;
  int64_t threads_;
  std::vector<std::vector<int64_t>> candidates_;
  std::vector<int64_t> parts_, best_;
  double best_time_ = std::numeric_limits<double>::infinity();
};

struct RecordedDivisions {
  std::atomic<bool> on{false};
  std::mutex mutex;
  std::vector<Division> divisions;

  static RecordedDivisions& instance() {
    static RecordedDivisions records;
    return records;
  }
};

}  // namespace

int64_t Grid::tasks() const {
  int64_t tasks = 1;
  for (int64_t parts : parts_) tasks *= parts;
  return tasks;
}

Grid Grid::in_units(size_t axis) const {
  Grid grid = *this;
  grid.parts_[axis] = std::max<int64_t>(1, units_[axis]);
  return grid;
}

int64_t Grid::part(size_t axis, int64_t task) const {
  for (size_t i = parts_.size() - 1; i > axis; --i) task /= parts_[i];
  return task % parts_[axis];
}

Range Grid::range(size_t axis, int64_t task) const {
  const int64_t i = part(axis, task);
  return {units_[axis] * i / parts_[axis], units_[axis] * (i + 1) / parts_[axis]};
}

double Grid::share(int64_t task) const {
  double share = 1;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (units_[i] > 0) {
      share *= static_cast<double>(range(i, task).size()) / static_cast<double>(units_[i]);
    }
  }
  return share;
}

Grid divide(const Work& work, int64_t threads) {
  std::vector<int64_t> units;
  for (const auto& axis : work.axes) units.push_back(axis.units);
  if (threads <= 1) return Grid(units);
  return {units, Search(work, threads).best()};
}

int64_t num_even_parts(int64_t count, int64_t max_parts, int64_t threads) {
  constexpr int64_t kMaxTasksPerThread = 8;
  if (threads <= 1) return 1;
  int64_t parts = std::max<int64_t>(1, std::min(count, max_parts));
  if (parts > threads) parts = std::min(parts / threads, kMaxTasksPerThread) * threads;
  return parts;
}

double imbalance(const std::vector<double>& tasks, int64_t threads) {
  std::vector<double> busy(static_cast<size_t>(threads), 0.0);
  double total = 0;
  for (double task : tasks) {
    *std::min_element(busy.begin(), busy.end()) += task;
    total += task;
  }
  const double largest = *std::max_element(busy.begin(), busy.end());
  return total > 0 ? largest * static_cast<double>(threads) / total : 1.0;
}

DivisionRecorder::DivisionRecorder() { RecordedDivisions::instance().on = true; }

DivisionRecorder::~DivisionRecorder() {
  RecordedDivisions::instance().on = false;
  take_divisions();
}

std::vector<Division> DivisionRecorder::take_divisions() {
  std::lock_guard<std::mutex> lock(RecordedDivisions::instance().mutex);
  return std::exchange(RecordedDivisions::instance().divisions, {});
}

bool DivisionRecorder::is_recording() {
  return RecordedDivisions::instance().on.load(std::memory_order_relaxed);
}

void DivisionRecorder::record_tasks(const Grid& grid, double multiplies) {
  Division division(static_cast<size_t>(grid.tasks()));
  for (size_t i = 0; i < division.size(); ++i) {
    division[i] = multiplies * grid.share(static_cast<int64_t>(i));
  }
  record(std::move(division));
}

void DivisionRecorder::record(Division division) {
  std::lock_guard<std::mutex> lock(RecordedDivisions::instance().mutex);
  RecordedDivisions::instance().divisions.push_back(std::move(division));
}

}  // namespace paddle_ngraph
