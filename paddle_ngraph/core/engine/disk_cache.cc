#include "core/engine/disk_cache.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/common/caches.h"
#include "core/common/content_hash.h"
#include "core/common/error.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration model_folders_declaration("model_folders",
                                                 "folders with functions that came with models",
                                                 "path of the folder", "the 256 most recent ones",
                                                 "never");

const CacheDeclaration disk_declaration("disk",
                                        "compiled functions in files of `FLAGS_ngraph_cache_dir`",
                                        "graph, signature, settings, versions and processor",
                                        "`FLAGS_ngraph_cache_disk_mb` MB; LRU",
                                        "`python -m paddle_ngraph cache --clear`");

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".ngraph";
constexpr char kTemporarySuffix[] = ".unfinished";
constexpr char kMagic[8] = {'N', 'G', 'R', 'A', 'P', 'H', 'F', '4'};

// Age at which an unfinished file is deleted: its writer must have died by then.
constexpr std::chrono::hours kTemporaryMaxAge{1};

struct Footer {
  uint64_t blob_bytes;
  uint64_t num_words;
  uint64_t key_bytes;
  uint64_t blob_hash;
  uint64_t metadata_hash;  // hash of the words and the key
  char magic[sizeof(kMagic)];
};

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return number_; }

 private:
  int number_;
};

// Whether only this user could have written the file or folder.
bool is_writable_only_by(uid_t user, const struct stat& status) {
  return status.st_uid == user && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

// A folder with functions, and the user that must own them.
struct ModelFolder {
  std::string folder;
  uid_t owner;
};

// The folders of saved models that contain functions, see add_model_folder().
class ModelFolders {
 public:
  static ModelFolders& instance() {
    static ModelFolders* const folders =
        std::make_unique<ModelFolders>().release();  // never destroyed: outlives every engine
    return *folders;
  }

  void add(ModelFolder folder) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto same = [&](const ModelFolder& known) { return known.folder == folder.folder; };
    folders_.erase(std::remove_if(folders_.begin(), folders_.end(), same), folders_.end());
    folders_.push_front(std::move(folder));
    if (folders_.size() > kMaxModelFolders) folders_.pop_back();
  }

  // The folders, most recently added first.
  std::deque<ModelFolder> all() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return folders_;
  }

 private:
  mutable std::mutex mutex_;
  std::deque<ModelFolder> folders_;
};

// FLAGS_ngraph_cache_dir, created if it is missing and `create` is set; empty if there is no such
// folder or it cannot be trusted.
std::string cache_folder(bool create) {
  const std::string path = FLAGS_ngraph_cache_dir;
  if (path.empty()) return {};
  struct stat status;
  if (stat(path.c_str(), &status) != 0) {
    if (!create) return {};
    std::error_code error;
    const fs::path parent = fs::path(path).parent_path();
    if (!parent.empty()) fs::create_directories(parent, error);
    if (mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) return {};
    if (stat(path.c_str(), &status) != 0) return {};
  }
  return S_ISDIR(status.st_mode) && is_writable_only_by(geteuid(), status) ? path : std::string();
}

std::string hex(const std::string& text, uint64_t seed) {
  char digits[17];
  std::snprintf(digits, sizeof(digits), "%016llx",
                static_cast<unsigned long long>(content_hash(text.data(), text.size(), seed)));
  return digits;
}

// Two hashes: the prefix of the names of all files of a graph.
std::string graph_prefix(const std::string& graph) { return hex(graph, 1) + hex(graph, 2) + "-"; }

std::string file_name(const DiskKey& key) {
  return graph_prefix(key.graph) + hex(key.instance, 1) + hex(key.instance, 2) + kSuffix;
}

std::string full_key(const DiskKey& key) { return key.graph + "\n" + key.instance; }

uint64_t hash_of(const std::vector<int64_t>& words, const std::string& key) {
  const uint64_t seed = content_hash(words.data(), words.size() * sizeof(int64_t), 0);
  return content_hash(key.data(), key.size(), seed);
}

// Maps a file, without loading its pages; nullptr if it is empty or cannot be mapped.
std::shared_ptr<const char> map(int descriptor, size_t size) {
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<const char*>(memory),
          [size](const char* mapped) { munmap(const_cast<char*>(mapped), size); }};
}

// Gives madvise() advice on a page-aligned range of a mapped file. Errors are ignored.
void advise(const char* begin, size_t size, int advice) {
  madvise(const_cast<char*>(begin), size, advice);
}

// Hash of the first bytes of a mapped file, computed in blocks, so that few pages are in memory at
// once.
uint64_t hash_of_mapped(const char* file, size_t size) {
  constexpr size_t kBlock = size_t{4} << 20;
  uint64_t hash = 0;
  for (size_t begin = 0; begin < size; begin += kBlock) {
    const size_t length = std::min(kBlock, size - begin);
#ifdef MADV_POPULATE_READ
    advise(file + begin, length, MADV_POPULATE_READ);
#endif
    hash = content_hash(file + begin, length, hash);
    advise(file + begin, length, MADV_DONTNEED);
  }
  return hash;
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

// A file being written, deleted unless it is renamed to its final path.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& folder)
      : path_(folder + "/XXXXXX" + kTemporarySuffix),
        descriptor_(mkostemps(path_.data(), sizeof(kTemporarySuffix) - 1, O_CLOEXEC)) {
    if (descriptor_.get() < 0) throw NgraphError(std::strerror(errno));
  }
  ~TemporaryFile() {
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

// The stored functions in a folder. Deletes old unfinished files.
std::vector<FileOnDisk> files_in(const std::string& folder) {
  std::vector<FileOnDisk> found;
  std::error_code error;
  const auto long_ago = fs::file_time_type::clock::now() - kTemporaryMaxAge;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    // Set if a file has gone, which is then skipped: another process may delete files, too.
    std::error_code gone;
    const auto used = at->last_write_time(gone);
    const auto bytes = at->file_size(gone);
    if (gone) continue;
    const auto kind = at->path().extension();
    if (kind == kTemporarySuffix && used < long_ago) fs::remove(at->path(), gone);
    if (kind == kSuffix) found.push_back({at->path(), used, static_cast<size_t>(bytes)});
  }
  return found;
}

// Deletes the least recently used files until `room` more bytes fit in the limit; false if they
// never can.
bool evict_to_fit(const std::string& folder, size_t room) {
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

// The sections of a file; std::nullopt if it is damaged or was written under another key.
std::optional<StoredFunction> parse(std::shared_ptr<const char> file, size_t size,
                                    const std::string& key) {
  if (file == nullptr || size < sizeof(Footer) + key.size()) return std::nullopt;
  Footer footer;
  size_t end = size - sizeof(footer);
  std::memcpy(&footer, file.get() + end, sizeof(footer));
  if (std::memcmp(footer.magic, kMagic, sizeof(kMagic)) != 0) return std::nullopt;
  end -= key.size();
  if (footer.key_bytes != key.size()) return std::nullopt;
  if (std::memcmp(key.data(), file.get() + end, key.size()) != 0) return std::nullopt;
  if (footer.num_words > end / sizeof(int64_t)) return std::nullopt;
  std::vector<int64_t> words(footer.num_words);
  end -= words.size() * sizeof(int64_t);
  std::memcpy(words.data(), file.get() + end, words.size() * sizeof(int64_t));
  const bool intact = footer.blob_bytes == end && footer.metadata_hash == hash_of(words, key) &&
                      footer.blob_hash == hash_of_mapped(file.get(), end);
  if (!intact) return std::nullopt;
  return StoredFunction{std::move(words), Blob{std::move(file), end}};
}

// Writes the file of a function: blob, words, key and footer.
void write_function(const TemporaryFile& file, const DiskKey& key,
                    const std::vector<int64_t>& words,
                    const std::function<void(const char* path)>& write_blob) {
  write_blob(file.path());
  const std::string text = full_key(key);
  Footer footer{};
  footer.blob_bytes = file.size();
  footer.num_words = words.size();
  footer.key_bytes = text.size();
  const auto blob = map(file.descriptor(), footer.blob_bytes);
  if (blob == nullptr) throw NgraphError("what was written cannot be read");
  footer.blob_hash = hash_of_mapped(blob.get(), footer.blob_bytes);
  footer.metadata_hash = hash_of(words, text);
  std::memcpy(footer.magic, kMagic, sizeof(kMagic));
  lseek(file.descriptor(), 0, SEEK_END);
  write_all(file.descriptor(), words.data(), words.size() * sizeof(int64_t));
  write_all(file.descriptor(), text.data(), text.size());
  write_all(file.descriptor(), &footer, sizeof(footer));
}

// The function stored under this key in a folder.
std::optional<StoredFunction> find_in(const ModelFolder& folder, const DiskKey& key, bool touches) {
  const std::string path = folder.folder + "/" + file_name(key);
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || !is_writable_only_by(folder.owner, status)) return std::nullopt;
  const auto size = static_cast<size_t>(status.st_size);
  auto stored = parse(map(file.get(), size), size, full_key(key));
  if (stored && touches) futimens(file.get(), nullptr);
  return stored;
}

}  // namespace

std::string disk_key_of_graph(const std::string& graph, const std::string& environment) {
  // The key contains only the first line of the graph string, because that line has a digest of the
  // rest.
  return environment + "\n" + graph.substr(0, graph.find('\n'));
}

std::optional<StoredFunction> find_file(const DiskKey& key) {
  const std::string where = cache_folder(false);
  if (!where.empty()) {
    if (auto stored = find_in({where, geteuid()}, key, true)) return stored;
  }
  for (const ModelFolder& folder : ModelFolders::instance().all()) {
    struct stat status;
    if (stat(folder.folder.c_str(), &status) != 0 || !is_writable_only_by(folder.owner, status))
      continue;
    if (auto stored = find_in(folder, key, false)) return stored;
  }
  return std::nullopt;
}

void release_pages(const Blob& blob) { advise(blob.memory.get(), blob.num_bytes, MADV_DONTNEED); }

bool has_cache_folder() {
  return !FLAGS_ngraph_cache_dir.empty() || !ModelFolders::instance().all().empty();
}

void add_model_folder(const std::string& folder, uint32_t owner) {
  ModelFolders::instance().add({folder, owner});
}

bool is_graph_stored(const std::string& graph) {
  const std::string where = cache_folder(false);
  if (where.empty()) return false;
  const std::string prefix = graph_prefix(graph);
  const auto files = files_in(where);
  return std::any_of(files.begin(), files.end(), [&](const FileOnDisk& file) {
    return file.path.filename().string().compare(0, prefix.size(), prefix) == 0;
  });
}

void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob) {
  const std::string where = cache_folder(true);
  if (where.empty()) return;
  try {
    TemporaryFile file(where);
    write_function(file, key, words, write_blob);
    if (evict_to_fit(where, file.size())) file.move_to(where + "/" + file_name(key));
  } catch (const std::exception&) {  // the function is not cached on disk, and the run continues
  }
}

void store_file_in(const std::string& folder, const DiskKey& key, const std::vector<int64_t>& words,
                   const std::function<void(const char* path)>& write_blob) {
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) throw NgraphError(std::strerror(errno));
  TemporaryFile file(folder);
  write_function(file, key, words, write_blob);
  constexpr mode_t kReadable = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  if (fchmod(file.descriptor(), status.st_mode & kReadable) != 0) {
    throw NgraphError(std::strerror(errno));
  }
  file.move_to(folder + "/" + file_name(key));
}

}  // namespace paddle_ngraph
