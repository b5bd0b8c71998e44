// The flags of the core, exported to paddle.get_flags and paddle.set_flags.
// paddle_ngraph/flags.py documents each and reads its environment variable.
#pragma once

#include "paddle/common/flags.h"

COMMON_DECLARE_bool(use_ngraph);
COMMON_DECLARE_int32(ngraph_cache_size);
COMMON_DECLARE_int32(ngraph_cache_mb);
COMMON_DECLARE_int32(ngraph_memory_mb);
COMMON_DECLARE_string(ngraph_cache_dir);
COMMON_DECLARE_int32(ngraph_cache_disk_mb);
COMMON_DECLARE_int32(ngraph_cache_min_ms);
COMMON_DECLARE_int32(ngraph_num_threads);
COMMON_DECLARE_string(ngraph_precision);
COMMON_DECLARE_int32(ngraph_min_interval_us);
COMMON_DECLARE_bool(ngraph_strict);
COMMON_DECLARE_bool(use_mkl_packed);
COMMON_DECLARE_string(mkl_packed_provider);
