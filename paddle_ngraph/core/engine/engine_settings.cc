#include "core/engine/engine_settings.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "core/common/error.h"
#include "core/common/threads.h"
#include "core/paddle/flags.h"

namespace paddle_ngraph {

namespace {

// Values of FLAGS_ngraph_precision, in the order of enum Precision.
constexpr std::array<const char*, 3> kPrecisions = {"f32", "bf16", "f16"};
// Values of FLAGS_ngraph_weights, in the order of enum WeightFormat.
constexpr std::array<const char*, 3> kWeightFormats = {"as given", "int8", "int4"};

WeightFormat weight_format_named(const std::string& name) {
  const auto* const found = std::find(kWeightFormats.begin(), kWeightFormats.end(), name);
  if (found == kWeightFormats.end()) {
    throw InvalidInput(concat("FLAGS_ngraph_weights=", name, ": use \"as given\", int8 or int4"));
  }
  return static_cast<WeightFormat>(found - kWeightFormats.begin());
}

}  // namespace

Settings settings_of(const GraphHeader& header) {
  const Precision precision = precision_named(FLAGS_ngraph_precision);
  const WeightFormat format = weight_format_named(FLAGS_ngraph_weights);
  Settings settings;
  if (!header.is_on_cpu()) {
    settings.num_threads = 1;
    // In training, gradients would underflow in float16: only functions with constant weights get
    // float16.
    if (precision == Precision::kFloat16 && header.has_frozen_weights()) {
      settings.precision = precision;
    }
    return settings;
  }
  if (precision == Precision::kBfloat16) settings.precision = precision;
  if (header.has_frozen_weights()) settings.weight_format = format;
  settings.num_threads = engine_threads();
  if (header.max_threads == 0) return settings;
  const int64_t most = num_threads(), wanted = int64_t{header.max_threads} * header.concurrent_runs;
  if (wanted < most) settings.num_threads = static_cast<int>(wanted);
  settings.streams =
      static_cast<int>(std::min<int64_t>(header.concurrent_runs, std::min(wanted, most)));
  settings.concurrent_runs = settings.streams;
  return settings;
}

int threads_of(const Settings& settings) {
  return settings.num_threads > 0 ? settings.num_threads : num_threads();
}

Precision precision_named(const std::string& name) {
  const auto* const found = std::find(kPrecisions.begin(), kPrecisions.end(), name);
  if (found == kPrecisions.end()) {
    throw InvalidInput(concat("FLAGS_ngraph_precision=", name, ": use f32, bf16 or f16"));
  }
  return static_cast<Precision>(found - kPrecisions.begin());
}

const char* name_of(Precision precision) { return kPrecisions.at(static_cast<size_t>(precision)); }

const char* name_of(WeightFormat format) { return kWeightFormats.at(static_cast<size_t>(format)); }

}  // namespace paddle_ngraph
