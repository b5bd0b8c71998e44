#include "core/paddle/flags.h"

PHI_DEFINE_EXPORTED_bool(use_ngraph, false, "Run static programs on the CPU through nGraph.");
PHI_DEFINE_EXPORTED_int32(ngraph_cache_size, 256, "How many compiled functions are kept.");
PHI_DEFINE_EXPORTED_int32(ngraph_cache_mb, 1024,
                          "Megabytes of weights that the functions kept may hold as constants.");
PHI_DEFINE_EXPORTED_int32(ngraph_memory_mb, 512,
                          "Megabytes of freed tensors that are kept for the next run.");
PHI_DEFINE_EXPORTED_string(
    ngraph_cache_dir, "",
    "Where compiled functions are kept for the next process; empty: nowhere.");
PHI_DEFINE_EXPORTED_int32(ngraph_cache_disk_mb, 2048, "Megabytes that they may take on disk.");
PHI_DEFINE_EXPORTED_int32(ngraph_cache_min_ms, 100,
                          "What was built in fewer milliseconds is not worth a file.");
PHI_DEFINE_EXPORTED_int32(ngraph_num_threads, 0,
                          "Threads of the engine; 0: every core the process may use.");
PHI_DEFINE_EXPORTED_string(ngraph_precision, "f32", "What inference computes in: f32 or bf16.");
PHI_DEFINE_EXPORTED_int32(ngraph_min_interval_us, 60,
                          "An interval that Paddle runs in fewer microseconds stays native.");
PHI_DEFINE_EXPORTED_bool(ngraph_strict, false,
                         "Raise what the engine cannot run, instead of leaving it to Paddle.");
PHI_DEFINE_EXPORTED_bool(use_mkl_packed, true,
                         "Run the recurrent layers of a program with packed weights.");
PHI_DEFINE_EXPORTED_string(mkl_packed_provider, "auto",
                           "Who multiplies by packed weights: auto, mkl or onednn.");
