// Stored functions: results of model_builder.h on disk, to load without another build.
#pragma once

#include <functional>
#include <optional>

#include "core/engine/disk_cache.h"
#include "core/engine/model_builder.h"

namespace paddle_ngraph {

// Loads the function stored under this key; std::nullopt without a usable file.
std::optional<BuiltFunction> load_function(const DiskKey& key);

// Returns whether the function still matches its key, since no weight that it reads in place was
// written meanwhile. Called when the file is complete.
using IsValid = std::function<bool()>;

// Stores a function in the disk cache; errors are ignored.
void store_function(const DiskKey& key, const BuiltFunction& built, const IsValid& is_valid = {});

// Stores a function in this folder. Throws if that fails.
void store_function_in(const std::string& folder, const DiskKey& key, const BuiltFunction& built,
                       const IsValid& is_valid = {});

}  // namespace paddle_ngraph
