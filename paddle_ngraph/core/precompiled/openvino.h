// Headers of OpenVINO and TBB that are compiled once, see setup.py. Sources still include what they
// use: clang-tidy and generated projects read them without this.
#include <openvino/core/extension.hpp>
#include <openvino/core/model.hpp>
#include <openvino/op/op.hpp>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
