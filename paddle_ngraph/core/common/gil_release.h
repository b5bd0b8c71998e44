// Temporary release of the GIL. pybind11's own class compiles the code of its types into each
// source.
#pragma once

#include <Python.h>

namespace paddle_ngraph {

class GilRelease {
 public:
  GilRelease() : thread_(PyEval_SaveThread()) {}
  ~GilRelease() { PyEval_RestoreThread(thread_); }
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;

 private:
  PyThreadState* const thread_;
};

}  // namespace paddle_ngraph
