// The secret of the user, by which stored functions in a cache folder are authenticated: a file
// that came from elsewhere, such as an archive or another machine, is not used, whoever owns it
// here.
#pragma once

#include <optional>
#include <string>

#include "core/common/blake3.h"

namespace paddle_ngraph {

// The secret for a cache folder. It is in the user's state directory
// ($XDG_STATE_HOME/paddle_ngraph), or in the cache folder itself if `is_trusted` (the user vouches
// for the folder, which machines with other home directories may share) or without a usable state
// directory. Created if there is none; std::nullopt if that fails.
std::optional<Digest> user_secret(const std::string& cache_folder, bool is_trusted);

}  // namespace paddle_ngraph
