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

// Whether the process was forked while another thread used OpenVINO, or needed a function that it
// cannot compile: any call of OpenVINO may wait forever for a thread.
bool is_openvino_lost();

// Records that OpenVINO has a thread of a destroyed function, which it lets compile the next one.
void note_idle_compiler();

// Called before OpenVINO compiles or imports a model. If the thread that would do so is one of the
// process from which this one was forked, throws NgraphError, and OpenVINO is lost from then on.
void require_compiler();

}  // namespace paddle_ngraph
