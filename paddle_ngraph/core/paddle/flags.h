// The flags of the core, exported to paddle.get_flags and paddle.set_flags: one table of names,
// defaults and meanings, which paddle_ngraph/flags.py reads too.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "paddle/common/flags.h"

#define NGRAPH_FLAGS(BOOL, INT32, STRING)                                                         \
  BOOL(use_ngraph, false, "Run static programs on the CPU through nGraph.")                       \
  INT32(ngraph_cache_size, 256, "Maximum number of compiled functions kept.")                     \
  INT32(ngraph_cache_mb, 1024,                                                                    \
        "Megabytes of weights that the cached functions may hold as constants.")                  \
  INT32(ngraph_memory_mb, 512, "Megabytes of freed tensors that are kept for the next run.")      \
  STRING(ngraph_cache_dir, "",                                                                    \
         "Where compiled functions are kept for the next process; empty: nowhere.")               \
  STRING(ngraph_trusted_dir, "",                                                                  \
         "Folder of models and functions that this user trusts although others own them.")        \
  INT32(ngraph_cache_disk_mb, 2048, "Megabytes that they may take on disk.")                      \
  INT32(ngraph_cache_min_ms, 100, "Functions built in fewer milliseconds are not kept on disk.")  \
  INT32(ngraph_num_threads, 0, "Threads of the engine; 0: every core the process may use.")       \
  STRING(ngraph_precision, "f32",                                                                 \
         "f32 (exact), bf16 for multiplications in training and all in inference, or f16 on "     \
         "GPUs and NPUs.")                                                                        \
  STRING(ngraph_weights, "as given",                                                              \
         "How functions of inference hold the weights of matrix products: as given, int8, or "    \
         "int4 in groups of 128.")                                                                \
  INT32(ngraph_min_interval_us, 60,                                                               \
        "An interval that Paddle runs in fewer microseconds runs natively, unless it is a whole " \
        "program that runs often; 0: none does.")                                                 \
  STRING(ngraph_background_compile, "auto",                                                       \
         "Run natively while functions are compiled: auto (where that takes long), 1 (wherever "  \
         "it is sound), or 0 (wait).")                                                            \
  INT32(ngraph_tuning_ms, 1000,                                                                   \
        "Milliseconds that tracing and building may hold up a function of dynamic mode, beyond "  \
        "a tenth of its native time; -1: no limit.")                                              \
  BOOL(ngraph_strict, false,                                                                      \
       "Raise an error instead of leaving to Paddle what the engine cannot run.")                 \
  INT32(ngraph_verify, 0,                                                                         \
        "Compare one run of the engine in so many, of each subgraph, with Paddle's kernels; 0: "  \
        "none.")                                                                                  \
  BOOL(ngraph_kernel_calls, true,                                                                 \
       "Call Paddle's kernels inside functions, for operators without a converter.")              \
  BOOL(use_mkl_packed, true, "Run the recurrent layers of a program with packed weights.")        \
  STRING(mkl_packed_provider, "auto",                                                             \
         "Which library multiplies by packed weights: auto, mkl, onednn.")

#define NGRAPH_DECLARE_BOOL(name, value, meaning) COMMON_DECLARE_bool(name);
#define NGRAPH_DECLARE_INT32(name, value, meaning) COMMON_DECLARE_int32(name);
#define NGRAPH_DECLARE_STRING(name, value, meaning) COMMON_DECLARE_string(name);
NGRAPH_FLAGS(NGRAPH_DECLARE_BOOL, NGRAPH_DECLARE_INT32, NGRAPH_DECLARE_STRING)
#undef NGRAPH_DECLARE_BOOL
#undef NGRAPH_DECLARE_INT32
#undef NGRAPH_DECLARE_STRING

namespace paddle_ngraph {

struct FlagInfo {
  std::string name;  // name of the flag without the prefix FLAGS_
  std::variant<bool, int, std::string> value;
  std::string meaning;
};

// Name, type, default and description of every flag of the package.
std::vector<FlagInfo> all_flags();

}  // namespace paddle_ngraph
