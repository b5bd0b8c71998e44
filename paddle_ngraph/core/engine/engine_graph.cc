#include "core/engine/engine_graph.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/common/error.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

// Number of words at the end of a signature for the settings that differ between functions of a
// graph.
constexpr size_t kSettingsWords = 4;

uint64_t next_id() {
  static std::atomic<uint64_t> count{0};
  return ++count;
}

// The first 63 bits of a digest in hexadecimal digits; Python computes them in events.py.
uint64_t first_bits(const std::string& digest) {
  return std::strtoull(digest.substr(0, 16).c_str(), nullptr, 16) >> 1;
}

// Throws InvalidInput if a tensor has no memory, or a LoD, which functions do not support.
void require_plain(const phi::DenseTensor& tensor, size_t input) {
  const bool has_shape = tensor.dims().size() >= 0;
  if (!has_shape || (!tensor.initialized() && tensor.numel() != 0)) {
    throw InvalidInput(
        concat("input ", input, " is not initialized; run the startup program first"));
  }
  if (!tensor.lod().empty()) {
    throw InvalidInput(concat("input ", input, " of the interval carries a LoD"));
  }
}

// Appends one word per element: its value, or the bits of a floating-point value.
void append_values(const phi::DenseTensor& tensor, std::vector<int64_t>* words) {
  const auto count = static_cast<size_t>(tensor.numel());
  if (count == 0) return;
  const auto* number = static_cast<const char*>(tensor.data());
  const size_t size = num_bytes(tensor) / count;
  for (size_t i = 0; i < count; ++i, number += size) {
    int64_t& word = words->emplace_back(0);
    if (tensor.dtype() == paddle::DataType::INT32) {
      word = *reinterpret_cast<const int32_t*>(number);
    } else {
      std::memcpy(&word, number, std::min(size, sizeof(word)));
    }
  }
}

}  // namespace

EngineGraph::EngineGraph(std::string text)
    : text_(std::move(text)),
      id_(next_id()),
      header_(read_header(text_)),
      subgraph_id_(first_bits(header_.digest)) {
  const auto is_only_read = [&](size_t input) { return input < header_.num_read_only(); };
  std::copy_if(header_.value_inputs.begin(), header_.value_inputs.end(),
               std::back_inserter(copied_inputs_), is_only_read);
}

Signature EngineGraph::signature(const Inputs& inputs, const Settings& settings) const {
  Signature signature;
  signature.graph = id_;
  signature.words.reserve(inputs.size() * 5);
  for (const auto* tensor : inputs) {
    const auto& dims = tensor->dims();
    signature.words.push_back(static_cast<int64_t>(tensor->dtype()));
    signature.words.push_back(dims.size());
    for (int i = 0; i < dims.size(); ++i) signature.words.push_back(dims[i]);
  }
  for (size_t input : header_.value_inputs) append_values(*inputs[input], &signature.words);
  const std::array<int64_t, kSettingsWords> last = {settings.num_threads, settings.streams,
                                                    static_cast<int64_t>(settings.precision),
                                                    static_cast<int64_t>(settings.weight_format)};
  signature.words.insert(signature.words.end(), last.begin(), last.end());
  return signature;
}

void EngineGraph::require_inputs(size_t given) const {
  if (given == header_.num_inputs) return;
  throw NgraphError(
      concat("the operator got ", given, " tensors, but its graph names ", header_.num_inputs));
}

void EngineGraph::require_valid(const Inputs& inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    require_plain(*inputs[i], i);
    require_dtype(*inputs[i], i);
    if (inputs[i]->numel() == 0) require_list(i);
  }
}

void EngineGraph::require_dtype(const phi::DenseTensor& tensor, size_t input) const {
  if (tensor.dtype() == header_.dtypes[input]) return;
  throw InvalidInput(concat("input ", input, " of the interval is ", tensor.dtype(),
                            ", the program declares ", header_.dtypes[input]));
}

// Throws InvalidInput for an empty input that is not read by value (a list of axes or sizes). No
// converter may see it: a converter's rejection of an empty tensor would be recorded for all sizes.
void EngineGraph::require_list(size_t input) const {
  const auto end = header_.value_inputs.end();
  if (std::find(header_.value_inputs.begin(), end, input) != end) return;
  throw InvalidInput(concat("input ", input, " of the interval is empty"));
}

uint64_t shape_hash(Signature key) {
  key.weights.reset();
  key.words.resize(key.words.size() - kSettingsWords);
  return SignatureHash()(key);
}

}  // namespace paddle_ngraph
