// The first run of a function that is given much.
//
// The plugin fills the memory of inputs with zeros when it compiles, and frees it when the first
// run gives it other memory. The C library keeps it, as blocks in the middle of its heap. So it
// goes back to the system before that run touches the memory that it computes in: the plugin tells
// nobody when, but our operators are asked to compute right after.
#pragma once

namespace paddle_ngraph {

class FirstRunTrim {
 public:
  FirstRunTrim();
  ~FirstRunTrim();
  FirstRunTrim(const FirstRunTrim&) = delete;
  FirstRunTrim& operator=(const FirstRunTrim&) = delete;

  // Called by every operator before it computes.
  static void on_operator_start();
};

}  // namespace paddle_ngraph
