// Division of work among threads: into a grid of chunks along its axes. One cost model serves all
// operators and all divisible axes: samples, groups, blocks of channels, rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace paddle_ngraph {

// Number of multiplications that take as long as reading or writing an element outside the L1
// cache: a core with vectors of 8 to 16 floats does 16 to 32 of them per cycle, and reads or writes
// 1 to 8 such floats.
constexpr double kMultipliesPerStep = 8;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// The chunks of each axis; every combination of them is a task. The last axis varies fastest.
class Grid {
 public:
  // A grid with a single chunk along each axis.
  explicit Grid(std::vector<int64_t> units) : Grid(units, std::vector(units.size(), int64_t{1})) {}
  Grid(std::vector<int64_t> units, std::vector<int64_t> parts)
      : units_(std::move(units)), parts_(std::move(parts)) {}

  int64_t tasks() const;
  int64_t parts(size_t axis) const { return parts_[axis]; }
  int64_t units(size_t axis) const { return units_[axis]; }
  // Returns a copy of the grid with one unit in each chunk along this axis.
  Grid in_units(size_t axis) const;
  // The chunk index of a task along an axis, and the units of that chunk: chunk sizes differ by one
  // at most.
  int64_t part(size_t axis, int64_t task) const;
  Range range(size_t axis, int64_t task) const;
  // The fraction of all units that a task computes.
  double share(int64_t task) const;

 private:
  std::vector<int64_t> units_, parts_;
};

constexpr int kNone = -1, kAlways = -2;

// An axis along which work can be divided among threads.
struct Axis {
  int64_t units = 1;       // size of the axis, in units that are never divided
  bool is_summed = false;  // whether the work sums over the axis: chunks give partial results
  int needs = kNone;       // index of an axis that has to be divided into single units first
  // Index of an axis: if that axis is divided into single units, chunks of this one are contiguous.
  int copied_unless = kNone;
  double overlap = 0;  // number of units of neighbouring chunks that a chunk reads, too
};

// An input or output of an operator whose work is divided among tasks. Every task needs all of it
// along axes that are not in `axes`.
struct WorkOperand {
  double elements = 0;
  uint32_t axes = 0;  // the axes along which the operand is divided, as a bit mask
  // Whether a task copies its chunk of the operand, unless the chunk is contiguous.
  bool is_copied = true;
};

constexpr uint32_t along(std::initializer_list<int> axes) {
  uint32_t bits = 0;
  for (int axis : axes) bits |= 1U << static_cast<unsigned>(axis);
  return bits;
}

struct Work {
  double multiplies = 0;  // number of multiplications, or of elementary steps that take as long
  std::vector<Axis> axes;
  std::vector<WorkOperand> operands;  // inputs of the work
  WorkOperand result;
};

// The grid with the shortest estimated time on this number of threads. The result depends on the
// arguments alone, so that sums of partial results are the same in every run.
Grid divide(const Work& work, int64_t threads);

// Number of chunks for `count` units, at most `max_parts` (chunks that are worth a task): the same
// number for each thread, if there are enough, and several per thread, for threads that are slower
// than others.
int64_t num_even_parts(int64_t count, int64_t max_parts, int64_t threads);

// The largest load of a thread over the mean, if each takes the next task when it has finished one.
double imbalance(const std::vector<double>& tasks, int64_t threads);

// The work of each task of one loop, in multiplications.
using Division = std::vector<double>;

// Records the divisions of all loops during its lifetime, for the benchmarks and for tests. At most
// one instance at a time.
class DivisionRecorder {
 public:
  DivisionRecorder();
  ~DivisionRecorder();
  DivisionRecorder(const DivisionRecorder&) = delete;
  DivisionRecorder& operator=(const DivisionRecorder&) = delete;

  // Returns the divisions of all loops recorded so far, and clears the record.
  std::vector<Division> take_divisions();

  static bool is_recording();
  static void record_tasks(const Grid& grid, double multiplies);

 private:
  static void record(Division division);
};

}  // namespace paddle_ngraph
