#include "disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "error.h"
#include "flags.h"
#include "weights.h"

namespace paddle_ngraph {

namespace {

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".ngraph";
constexpr char kUnfinished[] = ".unfinished";
constexpr char kMagic[8] = {'N', 'G', 'R', 'A', 'P', 'H', 'F', '1'};

// So many bytes are read and hashed at a time, while they are in the processor's cache.
constexpr size_t kChunk = 1 << 20;

// What a process that died left unfinished is deleted after so long.
constexpr std::chrono::hours kUnfinishedAge{1};

struct Footer {
  uint64_t blob_bytes;
  uint64_t num_words;
  uint64_t key_bytes;
  uint64_t blob_hash;
  uint64_t rest_hash;  // of words and key
  char magic[sizeof(kMagic)];
};

// Whether only this user could have written it.
bool is_ours(const struct stat& status) {
  return status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// FLAGS_ngraph_cache_dir, made where it is missing; empty where it cannot be trusted or made.
std::string folder(bool make) {
  const std::string path = FLAGS_ngraph_cache_dir;
  if (path.empty()) return {};
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    if (!make) return {};
    std::error_code error;
    const fs::path parent = fs::path(path).parent_path();
    if (!parent.empty()) fs::create_directories(parent, error);
    if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) return {};
    if (stat(path.c_str(), &status) != 0) return {};
  }
  return S_ISDIR(status.st_mode) && is_ours(status) ? path : std::string();
}

std::string hex(const std::string& text, uint64_t seed) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(content_hash(text.data(), text.size(), seed)));
  return digits;
}

// Two hashes: files of one graph begin with the same.
std::string graph_prefix(const std::string& graph) { return hex(graph, 1) + hex(graph, 2) + "-"; }

std::string file_name(const DiskKey& key) {
  return graph_prefix(key.graph) + hex(key.instance, 1) + hex(key.instance, 2) + kSuffix;
}

std::string whole_key(const DiskKey& key) { return key.graph + "\n" + key.instance; }

uint64_t hash_of(const std::vector<int64_t>& words, const std::string& key) {
  const uint64_t seed = content_hash(words.data(), words.size() * sizeof(int64_t), 0);
  return content_hash(key.data(), key.size(), seed);
}

bool read_all(int descriptor, void* memory, size_t size, size_t offset) {
  auto* at = static_cast<char*>(memory);
  while (size > 0) {
    const ssize_t count = pread(descriptor, at, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    offset += static_cast<size_t>(count);
    size -= static_cast<size_t>(count);
  }
  return true;
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

// Calls piece(offset, size) for every chunk of so many bytes.
template <typename Piece>
bool for_each_chunk(size_t total, const Piece& piece) {
  for (size_t start = 0; start < total; start += kChunk) {
    if (!piece(start, std::min(kChunk, total - start))) return false;
  }
  return true;
}

uint64_t hash_of_file(int descriptor, size_t size) {
  std::vector<char> memory(kChunk);
  uint64_t hash = 0;
  const bool complete = for_each_chunk(size, [&](size_t start, size_t count) {
    if (!read_all(descriptor, memory.data(), count, start)) return false;
    hash = content_hash(memory.data(), count, hash);
    return true;
  });
  if (!complete) throw NgraphError(std::strerror(errno));
  return hash;
}

// A file to be written, which vanishes unless it is moved into its place.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& folder)
      : path_(folder + "/XXXXXX" + kUnfinished),
        descriptor_(mkostemps(path_.data(), sizeof(kUnfinished) - 1, O_CLOEXEC)) {
    if (descriptor_.get() < 0) throw NgraphError(std::strerror(errno));
  }
  ~UnfinishedFile() {
    if (!path_.empty()) unlink(path_.c_str());
  }

  const char* path() const { return path_.c_str(); }
  int descriptor() const { return descriptor_.get(); }

  size_t size() const {
    struct stat status;
    if (fstat(descriptor(), &status) != 0) throw NgraphError(std::strerror(errno));
    return static_cast<size_t>(status.st_size);
  }

  void move_to(const std::string& path) {
    if (rename(path_.c_str(), path.c_str()) != 0) throw NgraphError(std::strerror(errno));
    path_.clear();
  }

 private:
  std::string path_;
  Descriptor descriptor_;
};

struct FileOnDisk {
  fs::path path;
  fs::file_time_type used;
  size_t bytes;
};

// The stored functions in a folder; what was left unfinished long ago is deleted.
std::vector<FileOnDisk> files_in(const std::string& folder) {
  std::vector<FileOnDisk> found;
  std::error_code error;
  const auto long_ago = fs::file_time_type::clock::now() - kUnfinishedAge;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code gone;  // another process deletes, too
    const auto used = at->last_write_time(gone);
    const auto bytes = at->file_size(gone);
    if (gone) continue;
    const auto kind = at->path().extension();
    if (kind == kUnfinished && used < long_ago) fs::remove(at->path(), gone);
    if (kind == kSuffix) found.push_back({at->path(), used, static_cast<size_t>(bytes)});
  }
  return found;
}

// Deletes the least recently used files until `room` more bytes fit; false where they never do.
bool make_room(const std::string& folder, size_t room) {
  const auto limit = static_cast<size_t>(std::max(0, FLAGS_ngraph_cache_disk_mb)) << 20;
  if (room > limit) return false;
  auto files = files_in(folder);
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.used > b.used; });
  for (const auto& file : files) room += file.bytes;
  for (; room > limit; files.pop_back()) {
    std::error_code gone;
    fs::remove(files.back().path, gone);
    room -= files.back().bytes;
  }
  return true;
}

void store_in(const std::string& folder, const DiskKey& key, const std::vector<int64_t>& words,
              const std::function<void(const char* path)>& write_blob) {
  UnfinishedFile file(folder);
  write_blob(file.path());
  const std::string text = whole_key(key);
  Footer footer{};
  footer.blob_bytes = file.size();
  footer.num_words = words.size();
  footer.key_bytes = text.size();
  footer.blob_hash = hash_of_file(file.descriptor(), footer.blob_bytes);
  footer.rest_hash = hash_of(words, text);
  std::memcpy(footer.magic, kMagic, sizeof(kMagic));
  lseek(file.descriptor(), 0, SEEK_END);
  write_all(file.descriptor(), words.data(), words.size() * sizeof(int64_t));
  write_all(file.descriptor(), text.data(), text.size());
  write_all(file.descriptor(), &footer, sizeof(footer));
  if (make_room(folder, file.size())) file.move_to(folder + "/" + file_name(key));
}

}  // namespace

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

std::string disk_key_of_graph(const std::string& graph, const std::string& environment) {
  // The first line holds a digest of the rest.
  return environment + "\n" + graph.substr(0, graph.find('\n'));
}

std::optional<StoredFile> StoredFile::find(const DiskKey& key) {
  const std::string where = folder(false);
  if (where.empty()) return std::nullopt;
  StoredFile file(where + "/" + file_name(key));
  if (!file.read_head(whole_key(key))) return std::nullopt;
  futimens(file.descriptor_.get(), nullptr);  // used now
  return file;
}

StoredFile::StoredFile(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC)) {}

bool StoredFile::read_head(const std::string& key) {
  struct stat status;
  if (descriptor_.get() < 0 || fstat(descriptor_.get(), &status) != 0) return false;
  if (!S_ISREG(status.st_mode) || !is_ours(status)) return false;
  Footer footer;
  const auto size = static_cast<size_t>(status.st_size);
  if (size < sizeof(footer) + key.size()) return false;
  size_t left = size - sizeof(footer);
  if (!read_all(descriptor_.get(), &footer, sizeof(footer), left)) return false;
  if (std::memcmp(footer.magic, kMagic, sizeof(kMagic)) != 0) return false;
  std::string text(key.size(), '\0');
  left -= key.size();
  if (footer.key_bytes != key.size() || footer.num_words > left / sizeof(int64_t)) return false;
  if (!read_all(descriptor_.get(), text.data(), text.size(), left) || text != key) return false;
  words_.resize(footer.num_words);
  left -= footer.num_words * sizeof(int64_t);
  if (footer.blob_bytes != left) return false;
  blob_bytes_ = footer.blob_bytes;
  blob_hash_ = footer.blob_hash;
  return read_all(descriptor_.get(), words_.data(), words_.size() * sizeof(int64_t), left) &&
         footer.rest_hash == hash_of(words_, text);
}

bool StoredFile::read_blob(void* memory) const {
  auto* const bytes = static_cast<char*>(memory);
  uint64_t hash = 0;
  const bool complete = for_each_chunk(blob_bytes_, [&](size_t start, size_t count) {
    if (!read_all(descriptor_.get(), bytes + start, count, start)) return false;
    hash = content_hash(bytes + start, count, hash);
    return true;
  });
  return complete && hash == blob_hash_;
}

bool is_graph_stored(const std::string& graph) {
  const std::string where = folder(false);
  if (where.empty()) return false;
  const std::string prefix = graph_prefix(graph);
  const auto files = files_in(where);
  return std::any_of(files.begin(), files.end(), [&](const FileOnDisk& file) {
    return file.path.filename().string().compare(0, prefix.size(), prefix) == 0;
  });
}

void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob) {
  const std::string where = folder(true);
  if (where.empty()) return;
  try {
    store_in(where, key, words, write_blob);
  } catch (const std::exception&) {  // a cache that cannot be written is none
  }
}

}  // namespace paddle_ngraph
