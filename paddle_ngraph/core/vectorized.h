// One object file for every x86-64 CPU, wider registers where there are.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NGRAPH_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define NGRAPH_VECTORIZED
#endif
