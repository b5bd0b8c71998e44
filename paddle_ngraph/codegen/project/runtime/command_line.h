// The command line of a generated program.
#pragma once

namespace native {

// Runs or trains the model as the arguments say. The exit status: 0, or 2 where something is wrong,
// which it says in one sentence.
int command_line(int count, char** arguments);

}  // namespace native
