// Parser of the subset of JSON that manifests use.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace native {

class Json {
 public:
  // Parses a text. Throws Error, with the position, if the text is not JSON.
  static Json parsed(const std::string& text);

  // The value as a C++ type: each function throws Error if the value has another type.
  const std::string& text() const;
  double number() const;
  int64_t integer() const;
  bool truth() const;
  const std::vector<Json>& list() const;
  const Json& at(const std::string& key) const;
  std::vector<int64_t> numbers() const;
  std::vector<size_t> sizes() const;

 private:
  friend class JsonReader;
  enum class Kind { kNull, kTruth, kNumber, kText, kList, kObject };

  void require(Kind kind, const char* what) const;

  Kind kind_ = Kind::kNull;
  bool truth_ = false;
  double number_ = 0;
  int64_t whole_ = 0;
  bool is_integer_ = false;
  std::string text_;
  std::vector<Json> list_;
  std::map<std::string, Json> object_;
};

}  // namespace native
