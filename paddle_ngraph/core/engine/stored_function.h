// Stored functions: results of model_builder.h on disk, to load without another build.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/engine/disk_cache.h"
#include "core/engine/graph_header.h"
#include "core/engine/model_builder.h"

namespace paddle_ngraph {

// The graph and the call that a stored function is for.
struct FunctionUse {
  const GraphHeader& header;
  const std::vector<phi::DenseTensor*>& inputs;
  const Settings& settings;  // as requested
};

// The function stored under this key; std::nullopt if there is no usable one. Whatever the file
// contains, a returned function can run on such inputs.
std::optional<BuiltFunction> load_function(const DiskKey& key, const FunctionUse& use);

// Returns whether the function still matches its key, since no weight that it reads in place was
// written meanwhile. Called when the file is complete.
using IsValid = std::function<bool()>;

// Stores a function in the disk cache; errors are ignored.
void store_function(const DiskKey& key, const BuiltFunction& built, const IsValid& is_valid = {});

// Stores a function in the folder of the model with this identity. Throws on failure.
void store_function_in(const std::string& folder, const Digest& identity, const DiskKey& key,
                       const BuiltFunction& built, const IsValid& is_valid = {});

}  // namespace paddle_ngraph
