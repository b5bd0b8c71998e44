// Compiled functions on disk, so that the next process need not build them again.
//
// One file holds one function: the blob that OpenVINO exports, then the numbers that go with it,
// the key, and a footer with checksums. A file is written under another name and moved into its
// place, so that processes that share the folder see only complete files; a file that is damaged or
// has another key counts as missing. Files are read, never executed, and only if they and their
// folder belong to the user and nobody else can write to them.
//
// Functions may also come with a saved model, in a folder beside it. That folder is only read, and
// trusted as much as the model is: folder and files have to have the same owner as the model.
//
// A file is mapped, not copied: that is fast, processes share the memory, and what a function has
// packed is in memory once. So a file may be deleted or replaced while its functions run, but not
// modified in place.
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

// A function as it was stored; the checksums have been verified.
struct StoredFunction {
  std::vector<int64_t> words;
  Blob blob;
};

// What is stored under this key in FLAGS_ngraph_cache_dir, which becomes the most recently used, or
// in a folder that came with a model; nothing if there is none.
std::optional<StoredFunction> find_file(const DiskKey& key);

// Has the blob of a stored function take no memory until it is read again.
void release_pages(const Blob& blob);

// Whether there is any place to look for functions, or to store them in.
bool has_cache_folder();

// From now on functions are also looked for in this folder: it came with a model that belongs to
// `owner`. The latest kMaxModelFolders of these are remembered.
constexpr size_t kMaxModelFolders = 256;
void add_model_folder(const std::string& folder, uint32_t owner);

// Whether there is a file for any function of this graph.
bool is_graph_stored(const std::string& graph);

// Stores a function; `write_blob` writes the blob to a new file at this path. Deletes the least
// recently used files beyond FLAGS_ngraph_cache_disk_mb. If anything fails (a folder that cannot be
// written to, a full disk), nothing is stored.
void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob);

// Stores it in another, existing folder, without a bound; whoever may read that folder may read the
// file. Throws NgraphError if that fails.
void store_file_in(const std::string& folder, const DiskKey& key, const std::vector<int64_t>& words,
                   const std::function<void(const char* path)>& write_blob);

}  // namespace paddle_ngraph
