// Disk cache of compiled functions, so that the next process need not build them again.
//
// One file contains one function: the blob that OpenVINO exports, then its metadata words, the key,
// and a footer with checksums. A file is written under a temporary name and renamed, so that
// processes that share the folder see only complete files; a file that is damaged or has another
// key is treated as missing. Files are read, never executed, and only if they and their folder
// belong to the user and no other user can write to them.
//
// Functions may also come with a saved model, in a folder next to it. That folder is only read, and
// trusted as much as the model is: folder and files must have the owner of the model.
//
// A file is mapped, not copied: mapping is fast, processes share the memory, and packed weights are
// in memory once. So a file may be deleted or replaced while its functions run, but not modified in
// place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Key of a stored function; `graph` alone identifies all functions of a graph.
struct DiskKey {
  // The environment of the build (versions, processor, settings) and the first line of the graph
  // string.
  std::string graph;
  // the signature of the function's inputs, and the fingerprint of the weights
  std::string instance;
};

// The `graph` of the DiskKey of a graph string.
std::string disk_key_of_graph(const std::string& graph, const std::string& environment);

// A function read from disk, with verified checksums.
struct StoredFunction {
  std::vector<int64_t> words;
  Blob blob;
};

// The function stored under this key in FLAGS_ngraph_cache_dir, which becomes the most recently
// used one, or in the folder of a model; std::nullopt if there is none.
std::optional<StoredFunction> find_file(const DiskKey& key);

// Releases the resident pages of a stored function's blob; a later read loads them again.
void release_pages(const Blob& blob);

// Whether any folder exists to load functions from or to store them in.
bool has_cache_folder();

// Adds the folder of a model that belongs to `owner` to the folders that are searched for
// functions. The kMaxModelFolders latest folders are retained.
constexpr size_t kMaxModelFolders = 256;
void add_model_folder(const std::string& folder, uint32_t owner);

// Whether FLAGS_ngraph_cache_dir contains a file for any function of this graph.
bool is_graph_stored(const std::string& graph);

// Stores a function; `write_blob` writes the blob to a new file at `path`. Deletes the least
// recently used files beyond FLAGS_ngraph_cache_disk_mb. If anything fails (a folder that cannot be
// written to, a full disk), nothing is stored.
void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob);

// Stores a function in another, existing folder, without a size limit; users who may read that
// folder may read the file. Throws NgraphError on failure.
void store_file_in(const std::string& folder, const DiskKey& key, const std::vector<int64_t>& words,
                   const std::function<void(const char* path)>& write_blob);

}  // namespace paddle_ngraph
