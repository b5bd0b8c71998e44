#include "runtime/json.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <locale>
#include <sstream>

#include "runtime/tensor.h"

namespace native {

namespace {

constexpr int kMaxDepth = 32;

}  // namespace

class JsonReader {
 public:
  explicit JsonReader(const std::string& text) : text_(text) {}

  Json read() {
    Json value = value_at(0);
    skip();
    if (at_ != text_.size()) fail();
    return value;
  }

 private:
  [[noreturn]] void fail() const { throw Error(concat("no JSON at byte ", at_)); }

  void skip() {
    while (at_ < text_.size() && std::strchr(" \n\r\t", text_[at_]) != nullptr) ++at_;
  }

  bool take(char wanted) {
    skip();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail();
  }

  bool take_word(const char* word) {
    if (text_.compare(at_, std::strlen(word), word) != 0) return false;
    at_ += std::strlen(word);
    return true;
  }

  Json value_at(int depth) {
    if (depth > kMaxDepth) fail();
    Json value;
    skip();
    if (take('{')) {
      value.kind_ = Json::Kind::kObject;
      if (take('}')) return value;
      do {
        skip();
        const std::string key = string();
        expect(':');
        value.object_[key] = value_at(depth + 1);
      } while (take(','));
      expect('}');
    } else if (take('[')) {
      value.kind_ = Json::Kind::kList;
      if (take(']')) return value;
      do {
        value.list_.push_back(value_at(depth + 1));
      } while (take(','));
      expect(']');
    } else if (at_ < text_.size() && text_[at_] == '"') {
      value.kind_ = Json::Kind::kText;
      value.text_ = string();
    } else if (take_word("true") || take_word("false")) {
      value.kind_ = Json::Kind::kTruth;
      value.truth_ = text_[at_ - 2] == 'u';
    } else if (!take_word("null")) {
      read_number(&value);
    }
    return value;
  }

  // The manifest is ASCII: other characters are escaped as \uXXXX, or as two of these (surrogates).
  std::string string() {
    if (at_ == text_.size() || text_[at_] != '"') fail();
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        result += text_[at_];
      } else if (const char* found = std::strchr(kEscapes, text_[++at_]); found && *found) {
        result += kMeant[found - kEscapes];
      } else if (text_[at_] == 'u') {
        append_utf8(code_point(), &result);
      } else {
        fail();
      }
    }
    if (at_ == text_.size()) fail();
    ++at_;
    return result;
  }

  uint32_t hex() {
    uint32_t code = 0;
    const char* begin = text_.data() + at_ + 1;
    if (text_.size() - at_ < 5) fail();
    if (std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4) fail();
    at_ += 4;
    return code;
  }

  uint32_t code_point() {
    const uint32_t first = hex();
    if (first < 0xd800 || first > 0xdbff) return first;
    if (text_.compare(++at_, 2, "\\u") != 0) fail();
    ++at_;
    return 0x10000 + ((first - 0xd800) << 10) + (hex() - 0xdc00);
  }

  static void append_utf8(uint32_t code, std::string* result) {
    if (code < 0x80) return result->push_back(static_cast<char>(code));
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr int kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    result->push_back(static_cast<char>(kFirst[more] | code >> (6 * more)));
    for (int i = more - 1; i >= 0; --i) {
      result->push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
    }
  }

  void read_number(Json* value) {
    const size_t stop = std::min(text_.find_first_not_of("+-.0123456789eE", at_), text_.size());
    std::istringstream token(text_.substr(at_, stop - at_));
    // The classic locale has a decimal point, whatever the locale of the host program has.
    token.imbue(std::locale::classic());
    if (!(token >> value->number_) || !token.eof()) fail();
    const char* end = text_.data() + stop;
    value->kind_ = Json::Kind::kNumber;
    value->is_integer_ = std::from_chars(text_.data() + at_, end, value->whole_).ptr == end;
    at_ = stop;
  }

  static constexpr char kEscapes[] = "\"\\/bfnrt";
  static constexpr char kMeant[] = "\"\\/\b\f\n\r\t";

  const std::string& text_;
  size_t at_ = 0;
};

Json Json::parsed(const std::string& text) { return JsonReader(text).read(); }

void Json::require(Kind kind, const char* what) const {
  if (kind_ != kind) throw Error(concat("something is not ", what));
}

const std::string& Json::text() const {
  require(Kind::kText, "a text");
  return text_;
}

double Json::number() const {
  require(Kind::kNumber, "a number");
  return number_;
}

int64_t Json::integer() const {
  require(Kind::kNumber, "a number");
  if (!is_integer_) throw Error("a number is not whole");
  return whole_;
}

bool Json::truth() const {
  require(Kind::kTruth, "true or false");
  return truth_;
}

const std::vector<Json>& Json::list() const {
  require(Kind::kList, "a list");
  return list_;
}

const Json& Json::at(const std::string& key) const {
  require(Kind::kObject, "an object");
  const auto found = object_.find(key);
  if (found == object_.end()) throw Error(concat("there is no '", key, "'"));
  return found->second;
}

std::vector<int64_t> Json::numbers() const {
  std::vector<int64_t> result;
  for (const auto& each : list()) result.push_back(each.integer());
  return result;
}

std::vector<size_t> Json::sizes() const {
  std::vector<size_t> result;
  for (int64_t each : numbers()) {
    if (each < 0) throw Error("a size is negative");
    result.push_back(static_cast<size_t>(each));
  }
  return result;
}

}  // namespace native
