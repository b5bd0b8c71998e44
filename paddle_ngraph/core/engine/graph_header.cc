#include "core/engine/graph_header.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <set>

#include "core/common/error.h"
#include "core/paddle/ngraph_engine_op.h"
#include "core/paddle/tensors.h"

namespace paddle_ngraph {

namespace {

constexpr char kMagic[] = "ngraph_engine";
constexpr size_t kFormat = 8;

// The upper limit of the numbers of variables in a header: no program reads as many.
constexpr size_t kMaxVariables = size_t{1} << 24;

constexpr size_t kMaxThreads = std::numeric_limits<int>::max();
constexpr size_t kMaxConcurrentRuns = 1024;

// Reads the first line of a graph string, word by word. Any value other than a plain integer that
// is in range and consistent with the rest of the line is rejected before use.
class HeaderReader {
 public:
  explicit HeaderReader(const std::string& graph) : text_(graph.substr(0, graph.find('\n'))) {}

  std::string word() {
    if (position_ > text_.size()) reject();
    const size_t end = std::min(text_.find(' ', position_), text_.size());
    const std::string word = text_.substr(position_, end - position_);
    position_ = end + 1;
    return word;
  }

  size_t number(size_t max) { return to_number(word(), max); }

  // Reads a list of distinct integers below `end`; "-" is an empty list.
  std::vector<size_t> positions(size_t end) {
    std::vector<size_t> positions;
    std::set<size_t> met;
    for (const std::string& item : list()) {
      const size_t position = to_number(item, end);
      if (position == end || !met.insert(position).second) reject();
      positions.push_back(position);
    }
    return positions;
  }

  // Reads a list of dtype names, and rejects it unless it has `count` names of known dtypes.
  std::vector<phi::DataType> dtypes(size_t count) {
    std::vector<phi::DataType> dtypes;
    for (const std::string& name : list()) dtypes.push_back(dtype_named(name));
    const bool are_known =
        std::find(dtypes.begin(), dtypes.end(), phi::DataType::UNDEFINED) == dtypes.end();
    if (dtypes.size() != count || !are_known) reject();
    return dtypes;
  }

  void end() const {
    if (position_ <= text_.size()) reject();
  }

  [[noreturn]] static void reject() {
    throw NgraphError(
        "the attribute 'graph' is not a subgraph of this release of paddle-ngraph; make the "
        "program again from the original one");
  }

 private:
  static size_t to_number(const std::string& text, size_t max) {
    size_t number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end || number > max) reject();
    return number;
  }

  // Reads one word that is a list, separated by commas; "-" is an empty list.
  std::vector<std::string> list() {
    std::vector<std::string> items;
    const std::string text = word();
    if (text == "-") return items;
    for (size_t start = 0; start <= text.size();) {
      const size_t stop = std::min(text.find(',', start), text.size());
      items.push_back(text.substr(start, stop - start));
      start = stop + 1;
    }
    return items;
  }

  std::string text_;
  size_t position_ = 0;
};

}  // namespace

GraphHeader read_header(const std::string& graph) {
  HeaderReader reader(graph);
  if (reader.word() != kMagic || reader.number(kFormat) != kFormat) HeaderReader::reject();
  GraphHeader header;
  header.digest = reader.word();
  header.num_inputs = reader.number(kMaxVariables);
  header.num_states = reader.number(header.num_inputs);
  header.num_outputs = reader.number(kMaxOutputs);
  header.value_inputs = reader.positions(header.num_inputs);
  header.weights = reader.positions(header.num_read_only());
  header.dtypes = reader.dtypes(header.num_inputs);
  header.has_eager_weights = reader.number(1) == 1;
  header.trains = reader.number(1) == 1;
  header.max_threads = static_cast<int>(reader.number(kMaxThreads));
  header.concurrent_runs = static_cast<int>(reader.number(kMaxConcurrentRuns));
  if (header.concurrent_runs == 0) HeaderReader::reject();
  header.device = reader.word();
  reader.end();
  return header;
}

}  // namespace paddle_ngraph
