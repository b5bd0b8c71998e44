#include "core/engine/disk_cache.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/common/caches.h"
#include "core/common/error.h"
#include "core/common/lru_cache.h"
#include "core/engine/files.h"
#include "core/engine/user_secret.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

const CacheDeclaration model_folders_declaration(
    "model_folders", "owners and identities of models with functions beside them",
    "path of the folder", "256", "never");

const CacheDeclaration disk_declaration(
    "disk",
    "compiled functions, and programs that the program pass has rewritten, in files of "
    "`FLAGS_ngraph_cache_dir`",
    "graph or program, signature, settings, versions and processor",
    "`FLAGS_ngraph_cache_disk_mb` MB; LRU", "`python -m paddle_ngraph cache --clear`",
    "files that processes share: the file system has the times of their last use");

namespace fs = std::filesystem;

constexpr char kSuffix[] = ".ngraph";
// The prefix of the files in the folder of a model: the files in FLAGS_ngraph_cache_dir, which are
// deleted one by one, have other names, in case the flag names the folder of a model.
constexpr char kModelPrefix[] = "model-";
constexpr char kMagic[8] = {'N', 'G', 'R', 'A', 'P', 'H', 'F', '5'};

// Age at which an unfinished file is deleted: its writer must have died by then.
constexpr std::chrono::hours kTemporaryMaxAge{1};

struct SectionSizes {
  uint64_t blob_bytes;
  uint64_t num_words;
  uint64_t key_bytes;
  char magic[sizeof(kMagic)];
};

// The end of a file. `code` authenticates everything else in the file.
struct Footer {
  Digest code;
  SectionSizes sizes;
};

// The folders of saved models that contain functions, by path, see add_model_folder(). Never
// destroyed: outlives every engine.
using ModelFolders = LruCache<std::string, std::shared_ptr<const ModelFolder>>;

ModelFolders& model_folders() {
  static ModelFolders* const folders = std::make_unique<ModelFolders>(kMaxModelFolders).release();
  return *folders;
}

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// Whether the user vouches for the folder, by FLAGS_ngraph_trusted_dir.
bool is_trusted(const std::string& folder) {
  if (FLAGS_ngraph_trusted_dir.empty()) return false;
  std::error_code error;
  const fs::path trusted = fs::canonical(FLAGS_ngraph_trusted_dir, error);
  if (error) return false;
  const fs::path path = fs::canonical(folder, error);
  return !error && is_below(path, trusted);
}

// Whether functions beside a model of this owner are used: the user and the administrator may
// decide what the user's processes compute.
bool is_trusted_owner(const ModelFolder& model) {
  return model.owner == geteuid() || model.owner == 0 || is_trusted(model.folder);
}

// FLAGS_ngraph_cache_dir, created if it is missing and `create` is set; empty if there is no such
// folder or it cannot be trusted.
std::string cache_folder(bool create) {
  const std::string path = FLAGS_ngraph_cache_dir;
  if (path.empty()) return {};
  if (create) {
    create_own_folder(path);
  }
  return is_own_folder(path) ? path : std::string();
}

constexpr size_t kNameDigits = 32;  // 128 bits of a digest

std::string name_of(const std::string& text) {
  return digest_of(text).hex().substr(0, kNameDigits);
}

// The beginning of the names of all files of a graph.
std::string graph_prefix(const std::string& graph) { return name_of(graph) + "-"; }

std::string file_name(const DiskKey& key) {
  return graph_prefix(key.graph) + name_of(key.instance) + kSuffix;
}

// Whether a file in FLAGS_ngraph_cache_dir may have been written by store_file().
bool is_cache_file_name(const std::string& name) {
  const auto is_digit = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  const auto has_digits_at = [&](size_t begin) {
    return std::all_of(name.begin() + begin, name.begin() + begin + kNameDigits, is_digit);
  };
  constexpr size_t kLength = 2 * kNameDigits + 1;
  return name.size() == kLength + sizeof(kSuffix) - 1 && has_digits_at(0) &&
         name[kNameDigits] == '-' && has_digits_at(kNameDigits + 1) &&
         name.compare(kLength, std::string::npos, kSuffix) == 0;
}

std::string full_key(const DiskKey& key) { return key.graph + "\n" + key.instance; }

// Maps a file, without loading its pages; nullptr if it is empty or cannot be mapped.
std::shared_ptr<const char> map(int descriptor, size_t size) {
  void* const memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {static_cast<const char*>(memory),
          [size](const char* mapped) { munmap(const_cast<char*>(mapped), size); }};
}

// Calls madvise() for a page-aligned range of a mapped file. Errors are ignored.
void advise(const char* begin, size_t size, int advice) {
  madvise(const_cast<char*>(begin), size, advice);
}

// Appends the digests of the first bytes of a mapped file, computed in blocks, so that few pages
// are in memory at once.
void append_digests_of_mapped(const char* file, size_t size, std::vector<Digest>* digests) {
  constexpr size_t kBlock = size_t{4} << 20;
  for (size_t begin = 0; begin < size; begin += kBlock) {
    const size_t length = std::min(kBlock, size - begin);
#ifdef MADV_POPULATE_READ
    advise(file + begin, length, MADV_POPULATE_READ);
#endif
    digests->push_back(digest_of(file + begin, length));
    advise(file + begin, length, MADV_DONTNEED);
  }
}

// The authentication code of the contents of a file, whose blob is mapped at `blob`.
Digest code_of(const Digest& secret, const SectionSizes& sizes, const char* blob,
               const std::vector<int64_t>& words, const std::string& key) {
  std::vector<Digest> digests{digest_of(&sizes, sizeof(sizes)),
                              digest_of(words.data(), words.size() * sizeof(int64_t)),
                              digest_of(key)};
  append_digests_of_mapped(blob, sizes.blob_bytes, &digests);
  return keyed_digest_of(secret, digests.data(), digests.size() * sizeof(Digest));
}

struct FileOnDisk {
  fs::path path;
  fs::file_time_type used;
  size_t bytes;
};

// The stored functions in FLAGS_ngraph_cache_dir. Deletes old unfinished files.
std::vector<FileOnDisk> files_in(const std::string& folder) {
  std::vector<FileOnDisk> found;
  std::error_code error;
  const auto long_ago = fs::file_time_type::clock::now() - kTemporaryMaxAge;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    const bool is_temporary = TemporaryFile::is_name(name);
    if (!is_temporary && !is_cache_file_name(name)) continue;
    // Set if a file has gone, which is then skipped: another process may delete files, too.
    std::error_code gone;
    const bool is_file = fs::is_regular_file(at->symlink_status(gone));
    const auto used = at->last_write_time(gone);
    const auto bytes = at->file_size(gone);
    if (gone || !is_file) continue;
    if (!is_temporary) {
      found.push_back({at->path(), used, static_cast<size_t>(bytes)});
    } else if (used < long_ago) {
      fs::remove(at->path(), gone);
    }
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

// The sections of a file; std::nullopt if the file is damaged, or was written under another key or
// with another secret.
std::optional<StoredFunction> parse(std::shared_ptr<const char> file, size_t size,
                                    const Digest& secret, const std::string& key) {
  if (file == nullptr || size < sizeof(Footer) + key.size()) return std::nullopt;
  Footer footer;
  size_t end = size - sizeof(footer);
  std::memcpy(&footer, file.get() + end, sizeof(footer));
  const SectionSizes& sizes = footer.sizes;
  if (std::memcmp(sizes.magic, kMagic, sizeof(kMagic)) != 0) return std::nullopt;
  end -= key.size();
  if (sizes.key_bytes != key.size()) return std::nullopt;
  if (std::memcmp(key.data(), file.get() + end, key.size()) != 0) return std::nullopt;
  if (sizes.num_words > end / sizeof(int64_t)) return std::nullopt;
  std::vector<int64_t> words(sizes.num_words);
  end -= words.size() * sizeof(int64_t);
  std::memcpy(words.data(), file.get() + end, words.size() * sizeof(int64_t));
  if (sizes.blob_bytes != end) return std::nullopt;
  const Digest code = code_of(secret, sizes, file.get(), words, key);
  if (!is_equal_in_constant_time(footer.code, code)) return std::nullopt;
  return StoredFunction{std::move(words), Blob{std::move(file), end}};
}

// Writes the file of a function: blob, words, key and footer.
void write_function(const TemporaryFile& file, const Digest& secret, const DiskKey& key,
                    const std::vector<int64_t>& words,
                    const std::function<void(const char* path)>& write_blob) {
  write_blob(file.path());
  const std::string text = full_key(key);
  Footer footer{};
  footer.sizes.blob_bytes = file.size();
  footer.sizes.num_words = words.size();
  footer.sizes.key_bytes = text.size();
  std::memcpy(footer.sizes.magic, kMagic, sizeof(kMagic));
  const auto blob = map(file.descriptor(), footer.sizes.blob_bytes);
  if (blob == nullptr) throw NgraphError("what was written cannot be read");
  footer.code = code_of(secret, footer.sizes, blob.get(), words, text);
  lseek(file.descriptor(), 0, SEEK_END);
  write_all(file.descriptor(), words.data(), words.size() * sizeof(int64_t));
  write_all(file.descriptor(), text.data(), text.size());
  write_all(file.descriptor(), &footer, sizeof(footer));
}

// The function stored in this file of a folder, if folder and file belong to `owner` and no
// other user can write to them.
std::optional<StoredFunction> find_in(const std::string& folder, uid_t owner,
                                      const std::string& name, const Digest& secret,
                                      const DiskKey& key, bool touches) {
  const Descriptor where(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat status;
  if (where.get() < 0 || fstat(where.get(), &status) != 0) return std::nullopt;
  if (!is_writable_only_by(owner, status)) return std::nullopt;
  // Opening a pipe would block.
  constexpr int kFlags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const Descriptor file(openat(where.get(), name.c_str(), kFlags));
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode) || !is_writable_only_by(owner, status)) return std::nullopt;
  const auto size = static_cast<size_t>(status.st_size);
  auto stored = parse(map(file.get(), size), size, secret, full_key(key));
  if (stored && touches) futimens(file.get(), nullptr);
  return stored;
}

std::optional<StoredFunction> find_in_cache(const std::string& name, const DiskKey& key) {
  const std::string folder = cache_folder(false);
  if (folder.empty() || access((folder + "/" + name).c_str(), F_OK) != 0) return std::nullopt;
  const auto secret = user_secret(folder, is_trusted(folder));
  if (!secret) return std::nullopt;
  return find_in(folder, geteuid(), name, *secret, key, true);
}

// The key of the file of a result that is no function.
DiskKey key_of_bytes(const std::string& key) { return {"other results", key, {}, std::nullopt}; }

}  // namespace

std::string disk_key_of_graph(const std::string& graph, const std::string& environment) {
  // The key contains only the first line of the graph string, because that line has a digest of the
  // rest.
  return environment + "\n" + graph.substr(0, graph.find('\n'));
}

std::optional<StoredFunction> find_file(const DiskKey& key) {
  const std::string name = file_name(key);
  if (auto stored = find_in_cache(name, key)) return stored;
  for (const auto& [path, model, bytes] : model_folders().entries()) {
    if (!model->serves(key) || !is_trusted_owner(*model)) continue;
    auto stored =
        find_in(model->folder, model->owner, kModelPrefix + name, model->identity, key, false);
    if (stored) return stored;
  }
  return std::nullopt;
}

void release_pages(const Blob& blob) { advise(blob.memory.get(), blob.num_bytes, MADV_DONTNEED); }

bool has_cache_folder() { return !FLAGS_ngraph_cache_dir.empty() || model_folders().size() > 0; }

void add_model_folder(ModelFolder folder) {
  std::string path = folder.folder;
  model_folders().put(std::move(path), std::make_shared<const ModelFolder>(std::move(folder)));
}

bool ModelFolder::serves(const DiskKey& key) const {
  const auto& wanted = key.weights;
  return graphs.count(key.graph_digest) > 0 && wanted.has_value() &&
         std::all_of(wanted->begin(), wanted->end(),
                     [&](const Digest& weight) { return weights.count(weight) > 0; });
}

std::vector<std::string> cache_files() {
  std::vector<std::string> paths;
  for (const FileOnDisk& file : files_in(FLAGS_ngraph_cache_dir)) paths.push_back(file.path);
  return paths;
}

bool is_graph_stored(const std::string& graph) {
  const std::string where = cache_folder(false);
  if (where.empty()) return false;
  const std::string prefix = graph_prefix(graph);
  // Names alone: the state of each file of a full folder takes milliseconds.
  std::error_code error;
  for (fs::directory_iterator at(where, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name.compare(0, prefix.size(), prefix) == 0 && is_cache_file_name(name)) return true;
  }
  return false;
}

void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob) {
  const std::string where = cache_folder(true);
  if (where.empty()) return;
  try {
    const auto secret = user_secret(where, is_trusted(where));
    if (!secret) return;
    TemporaryFile file(where);
    write_function(file, *secret, key, words, write_blob);
    if (evict_to_fit(where, file.size())) file.move_to(where + "/" + file_name(key));
  } catch (const std::exception&) {
    // An error of the disk cache is not an error of the run: the function is not stored.
  }
}

std::optional<std::string> find_bytes(const std::string& key) {
  const DiskKey file = key_of_bytes(key);
  const auto stored = find_in_cache(file_name(file), file);
  if (!stored) return std::nullopt;
  return std::string(stored->blob.memory.get(), stored->blob.num_bytes);
}

void store_bytes(const std::string& key, const std::string& bytes) {
  store_file(key_of_bytes(key), {}, [&](const char* path) {
    std::ofstream file(path, std::ios::binary);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    if (!file.flush()) throw NgraphError("the file cannot be written");
  });
}

void store_file_in(const std::string& folder, const Digest& identity, const DiskKey& key,
                   const std::vector<int64_t>& words,
                   const std::function<void(const char* path)>& write_blob) {
  struct stat status;
  if (stat(folder.c_str(), &status) != 0) throw NgraphError(std::strerror(errno));
  TemporaryFile file(folder);
  write_function(file, identity, key, words, write_blob);
  constexpr mode_t kReadable = S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH;
  if (fchmod(file.descriptor(), status.st_mode & kReadable) != 0) {
    throw NgraphError(std::strerror(errno));
  }
  file.move_to(folder + "/" + kModelPrefix + file_name(key));
}

}  // namespace paddle_ngraph
