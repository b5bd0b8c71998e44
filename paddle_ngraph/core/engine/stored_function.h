// Built functions on disk: what model_builder.h builds, without building it again.
#pragma once

#include <functional>
#include <optional>

#include "core/engine/disk_cache.h"
#include "core/engine/model_builder.h"

namespace paddle_ngraph {

// The function stored under this key; nothing if there is none that can be used.
std::optional<BuiltFunction> load_function(const DiskKey& key);

// Whether what was stored is what the key says: asked when it is complete.
using IsValid = std::function<bool()>;

// Stores a function, if possible.
void store_function(const DiskKey& key, const BuiltFunction& built, const IsValid& is_valid = {});

// Stores a function in this folder. Throws what prevents it.
void store_function_in(const std::string& folder, const DiskKey& key, const BuiltFunction& built,
                       const IsValid& is_valid = {});

}  // namespace paddle_ngraph
