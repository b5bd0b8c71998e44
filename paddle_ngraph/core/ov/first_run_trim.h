// Trims the heap in the first run of a function with large inputs.
//
// The plugin fills the memory of inputs with zeros when it compiles, and frees it when the first
// run sets other memory. The C library retains the freed memory as blocks in the middle of its
// heap. Therefore it is returned to the system before that run touches the memory in which it
// computes: the plugin has no callback for this point, but evaluates our operators right after it.
#pragma once

namespace paddle_ngraph {

class FirstRunTrim {
 public:
  FirstRunTrim();
  ~FirstRunTrim();
  FirstRunTrim(const FirstRunTrim&) = delete;
  FirstRunTrim& operator=(const FirstRunTrim&) = delete;

  // Notes that an operator of the core begins to compute; each of them calls this function.
  static void on_operator_start();
};

}  // namespace paddle_ngraph
