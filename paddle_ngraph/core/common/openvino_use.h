// Uses of OpenVINO, and forks: a forked process has none of the other threads, but the locks that
// they held, and the tasks of TBB that they had begun.
#pragma once

namespace paddle_ngraph {

// During its lifetime, this thread builds, loads, runs or destroys a function. No fork waits for
// it, since a build takes seconds, and may need the GIL, which the forking thread has.
class OpenVinoUse {
 public:
  // Throws NgraphError if is_openvino_lost().
  OpenVinoUse();
  ~OpenVinoUse();
  OpenVinoUse(const OpenVinoUse&) = delete;
  OpenVinoUse& operator=(const OpenVinoUse&) = delete;
};

// Whether the process was forked while another thread used OpenVINO: any call of OpenVINO may wait
// forever for that thread.
bool is_openvino_lost();

}  // namespace paddle_ngraph
