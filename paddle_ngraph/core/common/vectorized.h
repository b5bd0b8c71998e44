// Loops that decide the speed of a step are compiled for wider registers too; which one runs is
// found when the library is loaded. They are named by feature: by the name of a processor, another
// maker's would get the slowest. Without fused multiply-add (-ffp-contract=off) all of them round
// alike.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NGRAPH_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define NGRAPH_VECTORIZED
#endif

// For what such a loop calls: only this way it is compiled for the same instructions.
#define NGRAPH_INLINE __attribute__((always_inline))
