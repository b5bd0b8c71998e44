#include "mkl_packed/packed_gemm.h"

#include <chrono>
#include <cstring>
#include <limits>
#include <vector>

#include <cpuid.h>

#include "core/common/error.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph::mkl_packed {

namespace {

bool is_intel() {
  unsigned int level, words[3];
  if (__get_cpuid(0, &level, &words[0], &words[2], &words[1]) == 0) return false;
  return std::memcmp(words, "GenuineIntel", sizeof(words)) == 0;
}

// The shortest time of several matmuls with the size of a recurrent step, in seconds.
double probe(const GemmProvider& provider) {
  constexpr int64_t m = 16, n = 1024;
  const std::vector<float> b(n * n, 0.5f), a(m * n, 0.5f);
  std::vector<float> c(m * n);
  const auto packed = provider.pack({b.data(), n, true}, m, n, n);
  const auto matmul = packed->make_matmul({m, n, n, false});
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < 8; ++i) {
    const auto start = std::chrono::steady_clock::now();
    matmul->compute(a.data(), c.data());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

// The faster provider: by measurement on Intel's CPUs; on others oneDNN, since MKL takes a slower
// path there.
const GemmProvider& select_fastest() {
  if (!is_intel() || !why_unavailable("mkl").empty()) return onednn_provider();
  return probe(mkl_provider()) < probe(onednn_provider()) ? mkl_provider() : onednn_provider();
}

}  // namespace

std::string why_unavailable(const std::string& name) {
  try {
    if (name == "mkl") mkl_provider();
  } catch (const NgraphError& error) {
    return error.what();
  }
  return "";
}

const GemmProvider& provider() {
  if (FLAGS_ngraph_precision == "bf16") {
    if (const auto* found = bfloat16_provider()) return *found;
  }
  return float32_provider();
}

const GemmProvider& float32_provider() {
  const std::string& name = FLAGS_mkl_packed_provider;
  if (name == "onednn") return onednn_provider();
  if (name == "mkl") return mkl_provider();
  if (name != "auto") {
    throw NgraphError(concat("FLAGS_mkl_packed_provider is '", name, "': use auto, mkl or onednn"));
  }
  static const GemmProvider& chosen = select_fastest();
  return chosen;
}

}  // namespace paddle_ngraph::mkl_packed
