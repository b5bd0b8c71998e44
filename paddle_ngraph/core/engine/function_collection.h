// Collection of the functions of a graph for a model that is being saved.
#pragma once

#include <mutex>
#include <optional>
#include <string>

#include "core/engine/disk_cache.h"
#include "core/engine/model_builder.h"
#include "core/engine/stored_function.h"

namespace paddle_ngraph {

// The functions that are collected into a folder; thread-safe.
class FunctionCollection {
 public:
  // Begins the collection in this folder of the model with this identity. Throws NgraphError if
  // there is one already.
  void begin(const std::string& folder, const Digest& identity);

  // Ends the collection. Returns the message of its first error; empty without an error.
  std::string end();

  bool is_active() const;

  // Stores a built function, if functions are collected, unless `is_valid` returns false. Returns
  // whether functions are collected.
  bool add(const std::optional<DiskKey>& key, const BuiltFunction& built, const IsValid& is_valid);

 private:
  mutable std::mutex mutex_;
  std::string folder_;  // empty: no collection
  Digest identity_;
  std::string failure_;
};

}  // namespace paddle_ngraph
