// Disk cache of compiled functions, so that the next process need not build them again.
//
// One file contains one function: the blob that OpenVINO exports, then its metadata words, the key,
// and a footer with the sizes and an authentication code of all of them. A file is written under a
// temporary name and renamed, so that processes that share the folder see only complete files; a
// file that is damaged, has another key or was not written with the secret is treated as
// missing. Files are read, never executed, and only if they and their folder belong to the user and
// no other user can write to them. The secret is the user's (user_secret.h).
//
// Functions may also come with a saved model, in a folder next to it. That folder is only read, and
// trusted as much as the model is: folder and files must have the owner of the model, who must be
// the user or the administrator unless the folder is below FLAGS_ngraph_trusted_dir. Its secret is
// the identity of the model, a digest of the model's files: it serves the graphs and the weights of
// these files alone.
//
// A file is mapped, not copied: mapping is fast, processes share the memory, and packed weights are
// in memory once. So a file may be deleted or replaced while its functions run, but not modified in
// place.
//
// Other results that take long to compute are stored in the same folder, as the blobs of files
// without metadata words.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/common/blake3.h"
#include "core/ov/ov_function.h"

namespace paddle_ngraph {

// Key of a stored function. Keys of all functions of a graph have the same member `graph`.
struct DiskKey {
  // The environment of the build (versions, processor, settings) and the first line of the graph
  // string.
  std::string graph;
  std::string instance;  // the signature of the inputs, and the digest of the weights
  // The digest in the first line of the graph string, and of each constant weight, which are parts
  // of the other fields; nothing if the weights are no longer known.
  std::string graph_digest;
  std::optional<std::vector<Digest>> weights;
};

// The member `graph` of the keys of a graph's functions, in this environment.
std::string disk_key_of_graph(const std::string& graph, const std::string& environment);

// A function read from disk, whose authentication code was verified.
struct StoredFunction {
  std::vector<int64_t> words;
  Blob blob;
};

// The function stored under this key in FLAGS_ngraph_cache_dir, which becomes the most recently
// used one, or in the folder of a model; std::nullopt if there is none.
std::optional<StoredFunction> find_file(const DiskKey& key);

// Releases the resident pages of a stored function's blob; a later read loads them again.
void release_pages(const Blob& blob);

// Whether there is any folder to load functions from, or to store functions in.
bool has_cache_folder();

// A folder with the functions of a saved model.
struct ModelFolder {
  std::string folder;
  uint32_t owner;                // of the model
  Digest identity;               // see above
  std::set<std::string> graphs;  // the digests in the first lines of its graph strings
  std::set<Digest> weights;      // the digests of its parameters

  // Whether this is a function of the model.
  bool serves(const DiskKey& key) const;
};

// Adds the folder of a model to the folders that are searched for functions. The kMaxModelFolders
// latest folders are retained.
constexpr size_t kMaxModelFolders = 256;
void add_model_folder(ModelFolder folder);

// The paths of the functions stored in FLAGS_ngraph_cache_dir.
std::vector<std::string> cache_files();

// Whether FLAGS_ngraph_cache_dir contains a file for any function of this graph.
bool is_graph_stored(const std::string& graph);

// Stores a function; `write_blob` writes the blob to a new file at `path`. Deletes the least
// recently used files beyond FLAGS_ngraph_cache_disk_mb. If anything fails (a folder that cannot be
// written to, a full disk), nothing is stored.
void store_file(const DiskKey& key, const std::vector<int64_t>& words,
                const std::function<void(const char* path)>& write_blob);

// The bytes that store_bytes() has stored under this key in FLAGS_ngraph_cache_dir; std::nullopt if
// there are none.
std::optional<std::string> find_bytes(const std::string& key);

// Stores a result of any type under a key that says on what it depends. Otherwise as store_file().
void store_bytes(const std::string& key, const std::string& bytes);

// Stores a function in the existing folder of the model with this identity, without a size limit;
// users who may read that folder may read the file. Throws NgraphError on failure.
void store_file_in(const std::string& folder, const Digest& identity, const DiskKey& key,
                   const std::vector<int64_t>& words,
                   const std::function<void(const char* path)>& write_blob);

}  // namespace paddle_ngraph
