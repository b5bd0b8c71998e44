// Python's lock let go for a while. pybind11's own class brings the code behind its types into each
// source.
#pragma once

#include <Python.h>

namespace paddle_ngraph {

class WithoutPythonLock {
 public:
  WithoutPythonLock() : thread_(PyEval_SaveThread()) {}
  ~WithoutPythonLock() { PyEval_RestoreThread(thread_); }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* const thread_;
};

}  // namespace paddle_ngraph
