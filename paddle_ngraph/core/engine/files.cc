#include "core/engine/files.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include "core/common/error.h"

namespace paddle_ngraph {

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

bool is_writable_only_by(uid_t user, const struct stat& status) {
  return status.st_uid == user && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool is_own_folder(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
         is_writable_only_by(geteuid(), status);
}

void create_own_folder(const std::filesystem::path& path) {
  std::error_code error;
  const auto parent = path.parent_path();
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  mkdir(path.c_str(), S_IRWXU);
}

void write_all(int descriptor, const void* memory, size_t size) {
  const auto* at = static_cast<const char*>(memory);
  while (size > 0) {
    const ssize_t count = write(descriptor, at, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) throw NgraphError(std::strerror(errno));
    at += count;
    size -= static_cast<size_t>(count);
  }
}

std::vector<Digest> digests_in_file(const std::string& path, const std::vector<FileRange>& ranges) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw NgraphError(concat(path, ": ", std::strerror(errno)));
  std::vector<char> buffer(kMaxReadBytes);
  std::vector<Digest> digests;
  for (const FileRange& range : ranges) {
    digests.push_back(digest_of(range.num_bytes, [&](size_t begin, size_t count) {
      for (size_t done = 0; done < count;) {
        const auto at = static_cast<off_t>(range.begin + begin + done);
        const ssize_t read = pread(file.get(), buffer.data() + done, count - done, at);
        if (read < 0 && errno == EINTR) continue;
        if (read <= 0) throw NgraphError(concat(path, " cannot be read"));
        done += static_cast<size_t>(read);
      }
      return buffer.data();
    }));
  }
  return digests;
}

bool TemporaryFile::is_name(const std::string& name) {
  return name.size() == kNameLength + sizeof(kSuffix) - 1 &&
         name.compare(kNameLength, std::string::npos, kSuffix) == 0;
}

TemporaryFile::TemporaryFile(const std::string& folder)
    : path_(folder + "/XXXXXX" + kSuffix),
      descriptor_(mkostemps(path_.data(), sizeof(kSuffix) - 1, O_CLOEXEC)) {
  if (descriptor_.get() < 0) throw NgraphError(std::strerror(errno));
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) unlink(path_.c_str());
}

size_t TemporaryFile::size() const {
  struct stat status;
  if (fstat(descriptor(), &status) != 0) throw NgraphError(std::strerror(errno));
  return static_cast<size_t>(status.st_size);
}

void TemporaryFile::move_to(const std::string& path) {
  if (rename(path_.c_str(), path.c_str()) != 0) throw NgraphError(std::strerror(errno));
  path_.clear();
}

}  // namespace paddle_ngraph
