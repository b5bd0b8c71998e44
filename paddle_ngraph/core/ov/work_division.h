// How work is divided among threads: into a grid of parts along its axes. One place decides it for
// all operators, from what there is to divide: samples, groups, blocks of channels, rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace paddle_ngraph {

// As many multiplications take as long as reading or writing an element that is not in the L1
// cache: a core with vectors of 8 to 16 floats does 16 to 32 of them in a cycle, and reads or
// writes 1 to 8 such floats.
constexpr double kMultipliesPerStep = 8;

struct Range {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};

// The parts of each axis; every combination of them is a task. The last axis varies fastest.
class Grid {
 public:
  // Axes that are not divided.
  explicit Grid(std::vector<int64_t> units) : Grid(units, std::vector(units.size(), int64_t{1})) {}
  Grid(std::vector<int64_t> units, std::vector<int64_t> parts)
      : units_(std::move(units)), parts_(std::move(parts)) {}

  int64_t tasks() const;
  int64_t parts(size_t axis) const { return parts_[axis]; }
  int64_t units(size_t axis) const { return units_[axis]; }
  // The same, but that one axis is divided into its units.
  Grid in_units(size_t axis) const;
  // Which part of an axis a task works on, and its units: the parts differ by one at most.
  int64_t part(size_t axis, int64_t task) const;
  Range range(size_t axis, int64_t task) const;
  // The share of the whole that a task is.
  double share(int64_t task) const;

 private:
  std::vector<int64_t> units_, parts_;
};

constexpr int kNone = -1, kAlways = -2;

// An axis of a work that can be divided.
struct Axis {
  int64_t units = 1;          // which are not divided further
  bool is_summed = false;     // each part along it gives a result of its own, and these are added
  int needs = kNone;          // the axis that must be divided into its units before this one is
  int copied_unless = kNone;  // that axis; else parts along this one do not lie together
  double overlap = 0;         // units that a part also reads of its neighbours
};

// What a work reads or writes. Along an axis that is not among its own, every task needs all of it.
struct Operand {
  double elements = 0;
  uint32_t axes = 0;      // bits
  bool is_copied = true;  // where its parts do not lie together
};

constexpr uint32_t along(std::initializer_list<int> axes) {
  uint32_t bits = 0;
  for (int axis : axes) bits |= 1U << static_cast<unsigned>(axis);
  return bits;
}

struct Work {
  double multiplies = 0;  // multiplications, or steps that take as long
  std::vector<Axis> axes;
  std::vector<Operand> operands;  // read
  Operand result;
};

// The grid with which so many threads finish soonest. It depends on nothing but its arguments, so
// that sums of partial results do not change from run to run.
Grid divide(const Work& work, int64_t threads);

// Into how many parts `count` is divided if so many would be worth a task: as many for each thread,
// if there are enough, and a few, for threads that are slower than others.
int64_t num_even_parts(int64_t count, int64_t max_parts, int64_t threads);

// The largest share of one of the threads over the mean, if each takes the next task when it has
// finished one.
double imbalance(const std::vector<double>& tasks, int64_t threads);

// What a loop has divided: the work of each of its tasks, in products.
using Division = std::vector<double>;

// Notes the divisions of all loops during its life, for the benchmarks and for tests. One at a
// time.
class DivisionRecorder {
 public:
  DivisionRecorder();
  ~DivisionRecorder();
  DivisionRecorder(const DivisionRecorder&) = delete;
  DivisionRecorder& operator=(const DivisionRecorder&) = delete;

  // Those so far.
  std::vector<Division> take_divisions();

  static bool is_recording();
  static void record_tasks(const Grid& grid, double multiplies);

 private:
  static void record(Division division);
};

}  // namespace paddle_ngraph
