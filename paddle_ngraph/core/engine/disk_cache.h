// Compiled functions on disk, so that the next process need not build them again.
//
// One file holds one function: the blob that OpenVINO exports, then the numbers that go with it,
// the key, and a footer with checksums. A file is written under another name and moved into its
// place, so that processes which share the folder see whole files only; one that is damaged, or
// whose key is another, is as good as none. Files are read, never executed, and only where they and
// their folder belong to the user and nobody else can write them.
//
// Functions may also come with a saved model, in a folder beside it. That one is read only, and
// trusted as far as the model is: folder and files have to belong to whom the model belongs to.
//
// A file is mapped, not copied: that is fast, and processes share the memory. So a file may be
// deleted or replaced while functions of it run, but not written into.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Both parts together name a function; the first one alone, all functions of a graph.
struct DiskKey {
  std::string graph;     // the graph, and whatever else decides what is built of it
  std::string instance;  // the inputs and the weights
};

// DiskKey::graph of a graph string.
std::string disk_key_of_graph(const std::string& graph, const std::string& environment);

// A function as it was stored, checksums verified.
struct StoredFunction {
  std::vector<int64_t> words;
  Blob blob;
};

// What is stored under this key in FLAGS_ngraph_cache_dir, now the most recently used, or in a
// folder that came with a model; nothing where there is none.
std::optional<StoredFunction> find_file(const DiskKey& key);

// Whether there is any place to look for functions, or to store them.
bool has_places();

// Functions are looked for in this folder, too, from now on: it came with a model that belongs to
// `owner`. The latest kMostFolders of them are remembered.
constexpr size_t kMostFolders = 256;
void read_also(const std::string& folder, uint32_t owner);

// Whether there is a file of any function of this graph.
bool is_graph_stored(const std::string& graph);

// Stores a function; `write_blob` writes the blob to a new file of this path. Deletes the least
// recently used files beyond FLAGS_ngraph_cache_disk_mb. Where anything fails (a folder that cannot
// be written, a full disk), nothing is stored.
void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob);

// Stores it in another folder that is there, without a bound; whoever may read that may read the
// file. Throws NgraphError where that fails.
void store_file_in(const std::string& folder, const DiskKey& key, const std::vector<int64_t>& words,
                   const std::function<void(const char* path)>& write_blob);

}  // namespace paddle_ngraph
