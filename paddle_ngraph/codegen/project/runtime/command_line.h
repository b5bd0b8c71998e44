// The command line of a generated program: runs, serves or trains the model.
#pragma once

namespace native {

// Runs or trains the model as specified by the arguments. Returns the exit status: 0, or 2 on an
// error, which is printed in one sentence.
int command_line(int count, char** arguments);

}  // namespace native
