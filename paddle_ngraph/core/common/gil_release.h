// Python's lock let go for a while. pybind11's own class brings the code behind its types into each
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
