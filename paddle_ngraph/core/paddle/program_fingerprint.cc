#include "core/paddle/program_fingerprint.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "paddle/pir/include/core/block.h"
#include "paddle/pir/include/core/operation.h"
#include "paddle/pir/include/core/region.h"
#include "paddle/pir/include/core/value.h"

#include "core/common/prefetch.h"

namespace paddle_ngraph {

namespace {

uint64_t word_of(const void* address) { return reinterpret_cast<uintptr_t>(address); }

// Words that identify a type or an attribute: in Paddle, equal ones are one object.
uint64_t word_of(const pir::Type& type) { return word_of(type.storage()); }
uint64_t word_of(const pir::Attribute& attribute) { return attribute.hash(); }

// Passes all contents of a block to a reader. Words come in program order, named items in the order
// of their map. Each operator is announced before it is read.
template <typename Reader>
void read(const pir::Block& block, Reader* reader) {
  for (const auto& argument : block.args()) {
    reader->argument(argument.impl());
    reader->word(word_of(argument.type()));
  }
  reader->named(block.kwargs(), [&](const pir::Value& value) {
    reader->result(value.impl());
    return word_of(value.type());
  });
  uint64_t count = 0;
  for (const auto& op : block) {
    reader->begin_operator(op);
    reader->word(word_of(static_cast<void*>(op.info())));
    reader->named(op.attributes(), [](const pir::Attribute& each) { return word_of(each); });
    for (uint32_t i = 0; i < op.num_operands(); ++i) reader->operand(op.operand_source(i).impl());
    for (uint32_t i = 0; i < op.num_results(); ++i) {
      reader->result(op.result(i).impl());
      reader->word(word_of(op.result(i).type()));
    }
    for (uint32_t i = 0; i < op.num_regions(); ++i) {
      for (const auto& inner : op.region(i)) read(inner, reader);
    }
    ++count;
  }
  // The number of a block's operators follows the last one, so that a shorter block differs.
  reader->word(count);
}

// Mixes the bits of a word: the finalizer of SplitMix64 (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators).
uint64_t mix(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9ULL;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBULL;
  return word ^ (word >> 31);
}

// Operators and values are identified by their addresses.
template <typename Reader>
class ByAddress {
 public:
  void argument(const void* value) { reader().word(word_of(value)); }
  void operand(const void* value) { reader().word(word_of(value)); }
  void result(const void* /*value*/) {}

 private:
  Reader& reader() { return static_cast<Reader&>(*this); }
};

class Fingerprint : public ByAddress<Fingerprint> {
 public:
  void begin_operator(const pir::Operation& op) { word(word_of(&op)); }
  void word(uint64_t word) { value_ = mix(value_ * 31 + word); }

  // Adds the items of a map to the hash. Their hashes are summed, so that the order of the map does
  // not matter.
  template <typename Map, typename Word>
  void named(const Map& map, Word of) {
    uint64_t sum = map.size();
    for (const auto& [name, each] : map) {
      sum += mix(std::hash<std::string>{}(name) ^ mix(of(each)));
    }
    word(sum);
  }

  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
};

// Passes the characters of names to the reader, packed into words of eight.
template <typename Reader>
class InWords : public ByAddress<Reader> {
 public:
  template <typename Map, typename Word>
  void named(const Map& map, Word of) {
    reader().word(map.size());
    for (const auto& item : map) {
      reader().word(word_of(&item));
      reader().word(of(item.second));
      const std::string& name = item.first;
      reader().word(name.size());
      for (size_t at = 0; at < name.size(); at += sizeof(uint64_t)) {
        uint64_t part = 0;
        std::memcpy(&part, name.data() + at, std::min(name.size() - at, sizeof(part)));
        reader().word(part);
      }
    }
  }

 private:
  Reader& reader() { return static_cast<Reader&>(*this); }
};

// The contents of a program without addresses of operators, values and map items: values are
// numbered in program order, and the items of a map sorted by name. Each run appends fetches, whose
// call stacks, that of the run, differ.
class Contents {
 public:
  void begin_operator(const pir::Operation& op) {
    is_fetch_ = op.name() == "pd_op.fetch";
    word(op.num_operands());
    word(op.num_results());
    word(op.num_regions());
  }
  void word(uint64_t word) { words_.push_back(word); }
  void argument(const void* value) { result(value); }
  void result(const void* value) { numbers_.emplace(value, numbers_.size() + 1); }
  void operand(const void* value) {
    const auto found = numbers_.find(value);
    word(found == numbers_.end() ? 0 : found->second);
  }

  template <typename Map, typename Word>
  void named(const Map& map, Word of) {
    std::vector<std::pair<std::string_view, typename Map::const_iterator>> items;
    for (auto item = map.begin(); item != map.end(); ++item) {
      if (!is_fetch_ || item->first != "op_callstack") items.emplace_back(item->first, item);
    }
    std::sort(items.begin(), items.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    word(items.size());
    for (const auto& [name, item] : items) {
      word(name.size());
      for (const char each : name) word(static_cast<unsigned char>(each));
      word(of(item->second));
    }
  }

  Digest digest() const { return digest_of(words_.data(), words_.size() * sizeof(uint64_t)); }

 private:
  std::vector<uint64_t> words_;
  std::unordered_map<const void*, uint64_t> numbers_;
  bool is_fetch_ = false;
};

class Recorder : public InWords<Recorder> {
 public:
  void word(uint64_t word) { words_.push_back(word); }

  // Paddle stores an operator in one piece of memory: its results, its operands, then the operator.
  // Its attributes are elsewhere.
  void begin_operator(const pir::Operation& op) {
    word(word_of(&op));
    const auto* begin = reinterpret_cast<const char*>(&op);
    for (uint32_t i = 0; i < op.num_results(); ++i) {
      begin = std::min(begin, reinterpret_cast<const char*>(op.result(i).impl()));
    }
    note(begin, reinterpret_cast<const char*>(&op + 1) - begin);
    for (const auto& attribute : op.attributes()) {
      note(&attribute, sizeof(attribute));
      note(attribute.first.data(), attribute.first.size() + 1);
    }
  }

  std::vector<uint64_t> words() && { return std::move(words_); }

  std::vector<uintptr_t> lines() && {
    std::sort(lines_.begin(), lines_.end());
    lines_.erase(std::unique(lines_.begin(), lines_.end()), lines_.end());
    return std::move(lines_);
  }

 private:
  void note(const void* begin, size_t num_bytes) {
    for_each_line(begin, num_bytes, [&](uintptr_t line) { lines_.push_back(line); });
  }

  std::vector<uint64_t> words_;
  std::vector<uintptr_t> lines_;
};

class Comparison : public InWords<Comparison> {
 public:
  explicit Comparison(const std::vector<uint64_t>& words) : words_(words) {}

  void begin_operator(const pir::Operation& op) { word(word_of(&op)); }
  void word(uint64_t word) {
    is_same_ = is_same_ && at_ < words_.size() && words_[at_] == word;
    ++at_;
  }

  bool is_same() const { return is_same_ && at_ == words_.size(); }

 private:
  const std::vector<uint64_t>& words_;
  size_t at_ = 0;
  bool is_same_ = true;
};

}  // namespace

uint64_t program_fingerprint(const pir::Program& program) {
  Fingerprint fingerprint;
  read(*program.block(), &fingerprint);
  return fingerprint.value();
}

Digest program_digest(const pir::Program& program) {
  Contents contents;
  read(*program.block(), &contents);
  return contents.digest();
}

ProgramState::ProgramState(const pir::Program& program) {
  Recorder recorder;
  read(*program.block(), &recorder);
  words_ = std::move(recorder).words();
  lines_ = std::move(recorder).lines();
}

bool ProgramState::matches(const pir::Program& program) const {
  for (uintptr_t line : lines_) prefetch(line);
  Comparison comparison(words_);
  read(*program.block(), &comparison);
  return comparison.is_same();
}

}  // namespace paddle_ngraph
