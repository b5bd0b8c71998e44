// Paddle's table of the names that inputs and attributes of PIR operators have in ProgramDesc.
#pragma once

#include <string>

namespace paddle_ngraph {

// The name that the attribute `name` of a PIR operator has in the ProgramDesc operator `type`:
// `name` itself if the table has no other one.
std::string legacy_attribute_name(const std::string& type, const std::string& name);

}  // namespace paddle_ngraph
