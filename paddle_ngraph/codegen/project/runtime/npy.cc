#include "runtime/npy.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace native {

namespace {

constexpr char kMagic[] = "\x93NUMPY";
constexpr size_t kMagicBytes = 6;
constexpr int kLastVersion = 3;
constexpr uint32_t kLongestHeader = 65536;
constexpr size_t kAlignment = 64;  // bytes: NumPy aligns the data in a file to multiples of this

// NumPy's names of element types, without the first character, which is the byte order.
constexpr std::array<std::pair<ElementType, const char*>, 9> kTypes{{
    {ElementType::boolean, "b1"},
    {ElementType::i8, "i1"},
    {ElementType::u8, "u1"},
    {ElementType::i16, "i2"},
    {ElementType::i32, "i4"},
    {ElementType::i64, "i8"},
    {ElementType::f16, "f2"},
    {ElementType::f32, "f4"},
    {ElementType::f64, "f8"},
}};

// The text after `key` in the dictionary of a header, up to one of the characters in `ends`.
std::string field(const std::string& header, const std::string& key, const char* ends) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) return "";
  const size_t begin = header.find_first_not_of(' ', at + key.size() + 3);
  if (begin == std::string::npos) return "";
  const size_t end = header.find_first_of(ends, begin + 1);
  return end == std::string::npos ? "" : header.substr(begin, end - begin);
}

Shape parsed_shape(const std::string& text) {  // text: "(2, 3", without the closing parenthesis
  Shape shape;
  std::istringstream numbers(text.substr(1));
  for (std::string number; std::getline(numbers, number, ',');) {
    if (number.find_first_not_of(' ') == std::string::npos) continue;
    shape.push_back(std::stoull(number));
  }
  return shape;
}

}  // namespace

NpyFile::NpyFile(std::string path) : path_(std::move(path)), file_(path_, std::ios::binary) {
  const uint64_t size = size_of_file(path_);
  if (!file_) throw Error(concat("cannot read ", path_));
  try {
    read_header();
  } catch (const std::exception&) {
    throw Error(concat(path_, " is no .npy file of numbers in C order"));
  }
  if (size - begin_ != bytes_of(type_, shape_)) {
    throw Error(concat(path_, " is damaged: ", size - begin_, " bytes of data, and not the ",
                       bytes_of(type_, shape_), " of ", name_of(type_), " ", text_of(shape_)));
  }
}

void NpyFile::read_header() {
  file_.exceptions(std::ios::failbit | std::ios::badbit | std::ios::eofbit);
  std::array<char, kMagicBytes + 2> start{};
  file_.read(start.data(), start.size());
  if (std::string(start.data(), kMagicBytes) != kMagic) throw Error("another kind of file");
  const int version = start[kMagicBytes];
  if (version < 1 || version > kLastVersion) throw Error("its version");
  const bool is_short = version == 1;
  std::array<unsigned char, 4> length{};
  file_.read(reinterpret_cast<char*>(length.data()), is_short ? 2 : 4);
  const uint32_t count = length[0] | length[1] << 8 | length[2] << 16 | uint32_t{length[3]} << 24;
  if (count > kLongestHeader) throw Error("a header of that length");
  std::string header(count, ' ');
  file_.read(header.data(), count);
  begin_ = start.size() + (is_short ? 2 : 4) + count;
  const std::string type = field(header, "descr", ",");  // "'<f4'"
  if (field(header, "fortran_order", ",}") != "False" || type.size() != 5) throw Error("its order");
  if (type[1] != '<' && type[1] != '|') throw Error("its byte order");
  shape_ = parsed_shape(field(header, "shape", ")"));
  for (const auto& [known, name] : kTypes) {
    if (type.substr(2, 2) == name) return void(type_ = known);
  }
  throw Error("its dtype");
}

Tensor NpyFile::read() { return read(0, shape_); }

Tensor NpyFile::rows(size_t first, size_t count) {
  Shape shape = shape_;
  shape.at(0) = 1;
  const uint64_t row = bytes_of(type_, shape);
  shape.at(0) = count;
  return read(first * row, shape);
}

Tensor NpyFile::read(uint64_t offset, const Shape& shape) {
  Tensor result = allocate(type_, shape);
  try {
    file_.seekg(static_cast<std::streamoff>(begin_ + offset));
    file_.read(result.memory.get(), static_cast<std::streamsize>(result.bytes()));
  } catch (const std::ios::failure&) {
    throw Error(concat("cannot read ", path_));
  }
  return result;
}

namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// A new file beside `path`, and its path: nobody can have made a link of this name before.
std::pair<std::unique_ptr<std::FILE, CloseFile>, std::string> new_file(const std::string& path) {
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string name = concat(path, ".", random(), ".unfinished");
    const int descriptor =
        open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      std::unique_ptr<std::FILE, CloseFile> file(fdopen(descriptor, "wb"));
      if (file == nullptr) close(descriptor);
      return {std::move(file), std::move(name)};
    }
    if (errno != EEXIST) break;
  }
  return {};
}

// Writes a tensor to a temporary file for `path`; returns its path. Throws Error on failure.
std::string write_unfinished(const std::string& path, const Tensor& tensor) {
  std::string type;
  for (const auto& [known, name] : kTypes) {
    if (known == tensor.type) type = (native::bytes_of(known) == 1 ? "|" : "<") + std::string(name);
  }
  if (type.empty()) throw Error(concat(name_of(tensor.type), " has no place in an .npy file"));
  std::string shape;
  for (size_t size : tensor.shape) shape += std::to_string(size) + ", ";
  std::string header =
      concat("{'descr': '", type, "', 'fortran_order': False, 'shape': (", shape, "), }");
  const size_t start = kMagicBytes + 4;
  header.append(kAlignment - (start + header.size() + 1) % kAlignment, ' ').push_back('\n');
  const std::string start_of_file =
      concat(std::string(kMagic, kMagicBytes), '\1', '\0', static_cast<char>(header.size() & 0xff),
             static_cast<char>(header.size() >> 8), header);
  auto [file, unfinished] = new_file(path);
  if (file == nullptr) throw Error(concat("cannot write ", path));
  const auto write = [&file = *file](const char* data, size_t bytes) {
    return std::fwrite(data, 1, bytes, &file) == bytes;
  };
  const bool is_written = write(start_of_file.data(), start_of_file.size()) &&
                          write(tensor.memory.get(), tensor.bytes());
  if (std::fclose(file.release()) != 0 || !is_written) {
    std::remove(unfinished.c_str());
    throw Error(concat("cannot write ", path));
  }
  return unfinished;
}

}  // namespace

void write_npy(const std::string& folder, const std::map<std::string, Tensor>& arrays) {
  // For each final path, the path of the temporary file that will be renamed to it.
  std::map<std::string, std::string> written;
  try {
    for (const auto& [name, array] : arrays) {
      const std::string path = folder + "/" + file_name_of(name) + ".npy";
      written[path] = write_unfinished(path, array);
    }
    for (const auto& [path, unfinished] : written) {
      if (std::rename(unfinished.c_str(), path.c_str()) != 0) {
        throw Error(concat("cannot write ", path));
      }
    }
  } catch (const Error&) {
    for (const auto& [path, unfinished] : written) std::remove(unfinished.c_str());
    throw;
  }
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw Error(concat("cannot make the folder ", path, ": ", error.message()));
  if (access(path.c_str(), W_OK | X_OK) != 0) throw Error(concat("cannot write to ", path));
}

std::string file_name_of(const std::string& name) {
  constexpr char kPlain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string result;
  for (const char c : name) {
    if (c != 0 && std::strchr(kPlain, c) != nullptr) {
      result += c;
    } else {
      const auto code = static_cast<unsigned char>(c);
      result += {'%', kDigits[code / 16], kDigits[code % 16]};
    }
  }
  return result;
}

std::string path_in(const std::string& folder, const std::string& name) {
  const std::filesystem::path path(name);
  bool is_inside = !name.empty() && path.is_relative() && name.find('\0') == std::string::npos;
  for (const auto& part : path) is_inside &= part != "..";
  if (!is_inside) throw Error(concat("'", name, "' is no file of the model directory"));
  return folder + "/" + name;
}

Tensor read_raw(const std::string& path, ElementType type, const Shape& shape) {
  const uint64_t size = size_of_file(path);
  if (size != bytes_of(type, shape)) {
    throw Error(concat(path, " has ", size, " bytes, and ", name_of(type), " ", text_of(shape),
                       " has ", bytes_of(type, shape)));
  }
  Tensor result = allocate(type, shape);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(result.memory.get(), static_cast<std::streamsize>(size))) {
    throw Error(concat("cannot read ", path));
  }
  return result;
}

std::string read_text(const std::string& path) {
  size_of_file(path);
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw Error(concat("cannot read ", path));
  return text.str();
}

uint64_t size_of_file(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw Error(concat("there is no file ", path));
  return size;
}

}  // namespace native
