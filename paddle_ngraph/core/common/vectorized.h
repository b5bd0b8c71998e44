// Performance-critical loops are also compiled for wider registers; the version is selected when
// the library is loaded. The targets are named by feature: if they were named by processor, other
// vendors' processors would get the slowest version. Without fused multiply-add (-ffp-contract=off)
// all versions round identically.
#pragma once

// Not under ThreadSanitizer: its runtime is called when a version is chosen, before the library can
// call anything.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define NGRAPH_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define NGRAPH_VECTORIZED
#endif

// For functions called by an NGRAPH_VECTORIZED function: only inlined are they compiled for its
// instructions.
#define NGRAPH_INLINE __attribute__((always_inline))
