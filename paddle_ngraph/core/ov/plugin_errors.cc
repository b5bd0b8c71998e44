#include "core/ov/plugin_errors.h"

#include <cstring>
#include <sstream>
#include <string>

namespace paddle_ngraph {

namespace {

// Tags that enclose an error in text, since plugins pass on only text: "<InvalidInput code
// op_id>message</InvalidInput>".
constexpr char kTagBegin[] = "<InvalidInput ";
constexpr char kTagEnd[] = "</InvalidInput>";

}  // namespace

InvalidInput tagged(const InvalidInput& error) {
  const auto text = concat(kTagBegin, static_cast<int>(error.code()), ' ', error.op_id(), '>',
                           error.what(), kTagEnd);
  return InvalidInput(text, error.code(), error.op_id());
}

std::optional<InvalidInput> found_invalid_input(const char* text) {
  const std::string message = text;
  const auto begin = message.find(kTagBegin);
  const auto end = message.find(kTagEnd, begin);
  if (begin == std::string::npos || end == std::string::npos) return std::nullopt;
  std::istringstream tag(message.substr(begin + sizeof(kTagBegin) - 1));
  int code = 0;
  int64_t op_id = kNoOperator;
  char close = 0;
  if (!(tag >> code >> op_id >> close) || close != '>') return std::nullopt;
  const auto start = message.find('>', begin) + 1;
  return InvalidInput(message.substr(start, end - start), static_cast<ErrorCode>(code), op_id);
}

bool is_loop_fusion_error(const std::exception& error) {
  const auto has = [&](const char* text) { return std::strstr(error.what(), text) != nullptr; };
  return has("snippet") || has("Loop detected during topological sort");
}

}  // namespace paddle_ngraph
