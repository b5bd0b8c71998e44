// Compiled functions on disk, so that the next process need not build them again.
//
// One file holds one function: the blob that OpenVINO exports, then the numbers that go with it, the
// key, and a footer with checksums. A file is written under another name and moved into its place, so
// that processes which share the folder see whole files only; one that is damaged, or whose key is
// another, is as good as none. Files are read, never executed, and only where they and their folder
// belong to the user and nobody else can write them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace paddle_ngraph {

// An open file, closed at the end.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor();

  int get() const { return number_; }

 private:
  int number_;
};

// Both parts together name a function; the first one alone, all functions of a graph.
struct DiskKey {
  std::string graph;     // the graph, and whatever else decides what is built of it
  std::string instance;  // the inputs and the weights
};

// DiskKey::graph of a graph string.
std::string disk_key_of_graph(const std::string& graph, const std::string& environment);

class StoredFile {
 public:
  // The file of this key in FLAGS_ngraph_cache_dir, now the most recently used; nothing where there
  // is none or the cache is off.
  static std::optional<StoredFile> find(const DiskKey& key);

  const std::vector<int64_t>& words() const { return words_; }
  size_t blob_bytes() const { return blob_bytes_; }

  // Reads the blob into `memory` of that size. False when it is not what was written.
  bool read_blob(void* memory) const;

 private:
  explicit StoredFile(const std::string& path);
  bool read_head(const std::string& key);

  Descriptor descriptor_;
  std::vector<int64_t> words_;
  size_t blob_bytes_ = 0;
  uint64_t blob_hash_ = 0;
};

// Whether there is a file of any function of this graph.
bool is_graph_stored(const std::string& graph);

// Stores a function; `write_blob` writes the blob to a new file of this path. Deletes the least
// recently used files beyond FLAGS_ngraph_cache_disk_mb. Where anything fails (a folder that cannot
// be written, a full disk), nothing is stored.
void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob);

}  // namespace paddle_ngraph
