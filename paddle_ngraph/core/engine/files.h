// Files that are written under a temporary name, and checks of the owner of files.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/stat.h>
#include <sys/types.h>

#include "core/common/blake3.h"

namespace paddle_ngraph {

// A file descriptor, closed at the end; negative: none.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor();
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return number_; }

 private:
  int number_;
};

// Whether only this user could have written the file or folder.
bool is_writable_only_by(uid_t user, const struct stat& status);

// Whether the path is a folder that only the user of the process can write to.
bool is_own_folder(const std::string& path);

// Creates a folder with mode 0700, and its parents, unless it exists. Errors are ignored.
void create_own_folder(const std::filesystem::path& path);

// Throws NgraphError if it fails.
void write_all(int descriptor, const void* memory, size_t size);

// The digests of ranges of a file. Throws NgraphError if the file cannot be read, or is shorter.
struct FileRange {
  size_t begin;
  size_t num_bytes;
};
std::vector<Digest> digests_in_file(const std::string& path, const std::vector<FileRange>& ranges);

// A file being written, which only the user can read, deleted unless it is renamed to its final
// path.
class TemporaryFile {
 public:
  // Whether such a file may have this name.
  static bool is_name(const std::string& name);

  // Throws NgraphError if the folder cannot be written to.
  explicit TemporaryFile(const std::string& folder);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const char* path() const { return path_.c_str(); }
  int descriptor() const { return descriptor_.get(); }
  size_t size() const;

  void move_to(const std::string& path);

 private:
  static constexpr char kSuffix[] = ".unfinished";
  static constexpr size_t kNameLength = 6;  // number of characters before the suffix

  std::string path_;
  Descriptor descriptor_;
};

}  // namespace paddle_ngraph
