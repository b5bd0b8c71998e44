// Arrays in files: .npy files, in C order and little-endian, and files of raw bytes.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

#include "runtime/tensor.h"

namespace native {

// An .npy file that is open for reading. The size of the file has been checked against its header.
class NpyFile {
 public:
  // Opens a file. Throws Error if it cannot be read, or contains no numeric array.
  explicit NpyFile(std::string path);

  ElementType type() const { return type_; }
  const Shape& shape() const { return shape_; }
  const std::string& path() const { return path_; }

  Tensor read();
  // Reads `count` rows along axis 0, the first of which has index `first`.
  Tensor rows(size_t first, size_t count);

 private:
  void read_header();
  Tensor read(uint64_t offset, const Shape& shape);

  std::string path_;
  std::ifstream file_;
  ElementType type_ = ElementType::f32;
  Shape shape_;
  uint64_t begin_ = 0;  // offset of the first element in the file, in bytes
};

// Writes each array to FOLDER/NAME.npy; existing files are replaced once all are written. No file
// is written through a link. Throws Error if an array cannot be written.
void write_npy(const std::string& folder, const std::map<std::string, Tensor>& arrays);

// Creates a folder if missing. Throws Error if that fails, or if the folder is not writable.
void make_folder(const std::string& path);

// A file name, without extension, for a variable or result, whose name may contain any characters.
std::string file_name_of(const std::string& name);

// The path of a file of a model directory, from its name in the manifest. Throws Error if the name
// leads out of the directory.
std::string path_in(const std::string& folder, const std::string& name);

// Reads a file of raw elements. Throws Error unless its size matches the shape exactly.
Tensor read_raw(const std::string& path, ElementType type, const Shape& shape);

// Reads a whole file as text. Throws Error if the file cannot be read.
std::string read_text(const std::string& path);

// The size of a file in bytes. Throws Error if there is no such file.
uint64_t size_of_file(const std::string& path);

}  // namespace native
