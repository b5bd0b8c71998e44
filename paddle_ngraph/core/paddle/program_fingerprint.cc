#include "core/paddle/program_fingerprint.h"

#include <functional>
#include <string>

#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/region.h"
#include "paddle/pir/include/core/value.h"

namespace paddle_ngraph {

namespace {

// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators).
uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
  return word ^ (word >> 31);
}

class Fingerprint {
 public:
  void add(const void* address) { add(reinterpret_cast<uintptr_t>(address)); }
  void add(uint64_t word) { value_ = mix(value_ * 31 + word); }

  void add(const pir::Block& block) {
    for (const auto& argument : block.args()) {
      add(argument.impl());
      add(argument.type().storage());
    }
    uint64_t named = 0;  // in any order
    for (const auto& [name, argument] : block.kwargs()) {
      named += mix(std::hash<std::string>{}(name) ^ mix(argument.type().hash()));
    }
    add(named);
    uint64_t count = 0;
    for (const auto& op : block) {
      add(op);
      ++count;
    }
    add(count);  // where the block ends
  }

  uint64_t value() const { return value_; }

 private:
  void add(const pir::Operation& op) {
    add(&op);
    add(static_cast<void*>(op.info()));
    add(op.attributes());
    for (uint32_t i = 0; i < op.num_operands(); ++i) add(op.operand_source(i).impl());
    // Equal types are one object in Paddle, and so are equal attributes.
    for (uint32_t i = 0; i < op.num_results(); ++i) add(op.result(i).type().storage());
    for (uint32_t i = 0; i < op.num_regions(); ++i) {
      for (const auto& block : op.region(i)) add(block);
    }
  }

  // The order of the map does not matter.
  void add(const pir::AttributeMap& attributes) {
    uint64_t sum = attributes.size();
    for (const auto& [name, attribute] : attributes) {
      sum += mix(std::hash<std::string>{}(name) ^ mix(attribute.hash()));
    }
    add(sum);
  }

  uint64_t value_ = 0;
};

}  // namespace

uint64_t program_fingerprint(const pir::Program& program) {
  Fingerprint fingerprint;
  fingerprint.add(*program.block());
  return fingerprint.value();
}

}  // namespace paddle_ngraph
