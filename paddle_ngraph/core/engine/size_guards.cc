#include "core/engine/size_guards.h"

#include <array>
#include <cstddef>
#include <optional>

namespace paddle_ngraph {

namespace {

// Operations of a guard's stack program, with the opcodes of symbolic_sizes.py.
enum Operation : int64_t { kConstant, kSymbol, kAdd, kMultiply, kFloorDivide };
enum Kind : int64_t { kAtLeastZero, kZero, kNotZero };

// Depth of the stack: more than the expressions of all converters need. A guard that needs more
// does not hold.
constexpr size_t kStack = 64;

std::optional<int64_t> combined(int64_t operation, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (operation) {
    case kAdd:
      if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
      return result;
    case kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
      return result;
    case kFloorDivide:
      // No value for a divisor that is not positive: the guard that requires a positive one does
      // not hold either.
      if (b <= 0) return std::nullopt;
      result = a / b;
      return a % b < 0 ? result - 1 : result;
    default:
      return std::nullopt;
  }
}

// Runs the program of a guard, and returns the value that it leaves on the stack; nothing if the
// program is malformed, or an operation overflows.
std::optional<int64_t> run(const int64_t* word, const int64_t* end,
                           const std::vector<int64_t>& sizes) {
  std::array<int64_t, kStack> stack;
  size_t depth = 0;
  while (word != end) {
    const int64_t operation = *word++;
    if (operation == kConstant || operation == kSymbol) {
      if (word == end || depth == kStack) return std::nullopt;
      const int64_t operand = *word++;
      if (operation == kConstant) {
        stack[depth++] = operand;
      } else {
        if (operand < 0 || operand >= static_cast<int64_t>(sizes.size())) return std::nullopt;
        stack[depth++] = sizes[operand];
      }
      continue;
    }
    if (depth < 2) return std::nullopt;
    const auto result = combined(operation, stack[depth - 2], stack[depth - 1]);
    if (!result) return std::nullopt;
    stack[--depth - 1] = *result;
  }
  if (depth != 1) return std::nullopt;
  return stack[0];
}

bool holds(int64_t kind, int64_t number) {
  switch (kind) {
    case kAtLeastZero:
      return number >= 0;
    case kZero:
      return number == 0;
    case kNotZero:
      return number != 0;
    default:
      return false;
  }
}

}  // namespace

bool guards_hold(const std::vector<int64_t>& words, const std::vector<int64_t>& sizes) {
  for (size_t at = 0; at < words.size();) {
    const int64_t length = words[at++];
    if (length < 1 || length > static_cast<int64_t>(words.size() - at)) return false;
    const auto number = run(&words[at] + 1, &words[at] + length, sizes);
    if (!number || !holds(words[at], *number)) return false;
    at += static_cast<size_t>(length);
  }
  return true;
}

}  // namespace paddle_ngraph
