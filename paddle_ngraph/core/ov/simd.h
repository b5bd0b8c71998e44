// Loops that decide the speed of a step are compiled for the instructions of newer processors too;
// which one runs is found when the library is loaded. Fused multiply-add is among them, so results
// agree to rounding only.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NGRAPH_SIMD __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define NGRAPH_SIMD
#endif

// For what such a loop calls: only this way it is compiled for the same instructions.
#define NGRAPH_INLINE __attribute__((always_inline))
