#include "runtime/command_line.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/model.h"
#include "runtime/npy.h"
#include "runtime/run.h"

namespace native {

namespace {

constexpr char kUsage[] =
    "usage: main MODEL --input NAME=FILE ... [options]\n"
    "       main MODEL --train --input NAME=FILE ... [options]\n"
    "\n"
    "MODEL is the model directory, FILE an .npy file, or else raw elements in C order.\n"
    "  --shape NAME=2x3   the shape of a raw file whose input has open sizes\n"
    "  --threads N        threads that compute (default: one for each core)\n"
    "  --seed N           of the random numbers (default: that of the manifest)\n"
    "  --load DIR         take the variables from DIR, where --save wrote them\n"
    "Inference:\n"
    "  --output DIR       write each result to DIR/NAME.npy (default: print them)\n"
    "  --repeat N         run N times, and print how long opening and a run took\n"
    "Training, on rows of the files in their order:\n"
    "  --batch N          rows in a step (default: what the program declares); the last rows are\n"
    "                     left out if they do not fill one\n"
    "  --epochs N         how often to go over the files (default: 1)\n"
    "  --steps N          stop after so many steps\n"
    "  --log N            print the loss of every N-th step (default: 1)\n"
    "  --save DIR         write the variables to DIR/NAME.npy at the end\n";

constexpr size_t kShown = 8;  // number of elements of a result that are printed
constexpr uint64_t kMaxThreads = 65536;

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Arguments {
  std::string model, output, load, save;
  std::vector<std::string> inputs, shapes;  // arguments NAME=FILE, and arguments NAME=SIZES
  bool trains = false;
  size_t threads = 0, repeat = 0, batch = 0, epochs = 1, steps = 0, log = 1;
  std::optional<uint64_t> seed;
};

constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();

uint64_t number(const std::string& text, const std::string& option, uint64_t most = kLargest) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value > most) {
    throw Error(concat(option, " takes a whole number up to ", most, ", not '", text, "'"));
  }
  return value;
}

Arguments parsed(const std::vector<std::string>& words) {
  Arguments arguments;
  const std::map<std::string, std::function<void(const std::string&)>> options{
      {"--input", [&](const auto& v) { arguments.inputs.push_back(v); }},
      {"--shape", [&](const auto& v) { arguments.shapes.push_back(v); }},
      {"--output", [&](const auto& v) { arguments.output = v; }},
      {"--load", [&](const auto& v) { arguments.load = v; }},
      {"--save", [&](const auto& v) { arguments.save = v; }},
      {"--threads",
       [&](const auto& v) { arguments.threads = number(v, "--threads", kMaxThreads); }},
      {"--seed", [&](const auto& v) { arguments.seed = number(v, "--seed"); }},
      {"--repeat", [&](const auto& v) { arguments.repeat = number(v, "--repeat"); }},
      {"--batch", [&](const auto& v) { arguments.batch = number(v, "--batch"); }},
      {"--epochs", [&](const auto& v) { arguments.epochs = number(v, "--epochs"); }},
      {"--steps", [&](const auto& v) { arguments.steps = number(v, "--steps"); }},
      {"--log", [&](const auto& v) { arguments.log = std::max<uint64_t>(1, number(v, "--log")); }},
  };
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--train") {
      arguments.trains = true;
    } else if (const auto option = options.find(words[i]); option != options.end()) {
      if (++i == words.size()) throw Error(option->first + " takes a value");
      option->second(words[i]);
    } else if (arguments.model.empty() && words[i][0] != '-') {
      arguments.model = words[i];
    } else {
      throw Error("there is no option " + words[i] + "; --help lists all");
    }
  }
  if (arguments.model.empty()) throw Error("give the model directory; --help lists all options");
  return arguments;
}

bool is_npy(const std::string& path) {
  return path.size() > 4 && path.compare(path.size() - 4, 4, ".npy") == 0;
}

// The values of the arguments NAME=VALUE by name. An input's name may contain '=', too.
std::map<std::string, std::string> by_input(const Model& model, const std::string& option,
                                            const std::vector<std::string>& words) {
  std::map<std::string, std::string> found;
  for (const auto& word : words) {
    const size_t at = word.find('=');
    if (at == 0 || at == std::string::npos) throw Error(option + " takes NAME=..., not " + word);
    std::string known;
    const std::string* name = nullptr;
    for (const auto& input : model.inputs()) {
      known += (known.empty() ? "" : ", ") + input.name;
      const bool is_it = word.compare(0, input.name.size() + 1, input.name + "=") == 0;
      if (is_it && (name == nullptr || name->size() < input.name.size())) name = &input.name;
    }
    if (name == nullptr) {
      throw Error("the program has no input '" + word.substr(0, at) + "', but " + known);
    }
    if (!found.emplace(*name, word.substr(name->size() + 1)).second) {
      throw Error(option + " " + *name + " is given twice");
    }
  }
  return found;
}

using Shapes = std::map<std::string, std::string>;

// The path of the file for each input, in the order of the model's inputs.
std::vector<std::string> files_of(const Model& model, const Arguments& arguments) {
  const auto given = by_input(model, "--input", arguments.inputs);
  std::vector<std::string> files;
  for (const auto& input : model.inputs()) {
    const auto found = given.find(input.name);
    if (found == given.end()) throw Error("--input " + input.name + "=FILE is missing");
    files.push_back(found->second);
  }
  return files;
}

Shape shape_of_raw(const Declared& input, const Shapes& shapes) {
  Shape shape;
  const auto given = shapes.find(input.name);
  if (given != shapes.end()) {
    std::string text = given->second + "x";
    for (size_t at = text.find('x'); at != std::string::npos; at = text.find('x')) {
      shape.push_back(number(text.substr(0, at), "--shape"));
      text.erase(0, at + 1);
    }
  } else {
    for (int64_t size : input.shape) {
      if (size < 0) throw Error("give --shape " + input.name + "=..., since its file is raw");
      shape.push_back(static_cast<size_t>(size));
    }
  }
  input.require(input.type, shape);
  return shape;
}

Tensor read_input(const Declared& input, const std::string& path, const Shapes& shapes) {
  if (!is_npy(path)) return read_raw(path, input.type, shape_of_raw(input, shapes));
  NpyFile file(path);
  input.require(file.type(), file.shape());
  return file.read();
}

void print(const std::string& name, const Tensor& value) {
  std::cout << printable(name) << ": " << name_of(value.type) << " " << text_of(value.shape) << ":";
  with_type(value.type, [&](auto* kind) {
    using T = std::remove_pointer_t<decltype(kind)>;
    // The type to which an element is converted for printing: int64_t for integers, double for
    // floats, so that all digits are shown.
    using Shown = std::conditional_t<std::is_integral_v<T>, int64_t, double>;
    for (size_t i = 0; i < std::min(kShown, value.count()); ++i) {
      std::cout << " " << static_cast<Shown>(value.data<T>()[i]);
    }
  });
  std::cout << (value.count() > kShown ? " ...\n" : "\n");
}

// The peak memory of the process, in MB.
double peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

void infer(Model* model, const Arguments& arguments, double ms_to_open) {
  const auto files = files_of(*model, arguments);
  const auto shapes = by_input(*model, "--shape", arguments.shapes);
  Tensors feeds;
  for (size_t i = 0; i < files.size(); ++i) {
    feeds.push_back(read_input(model->inputs()[i], files[i], shapes));
  }
  if (!arguments.output.empty()) make_folder(arguments.output);
  auto start = Clock::now();
  Tensors results = model->run(feeds);
  const double first = ms_since(start);
  std::vector<double> times;
  for (size_t i = 0; i < arguments.repeat; ++i) {
    start = Clock::now();
    results = model->run(feeds);
    times.push_back(ms_since(start));
  }
  std::map<std::string, Tensor> named;
  for (size_t i = 0; i < results.size(); ++i) named[model->results()[i].name] = results[i];
  if (!arguments.output.empty()) write_npy(arguments.output, named);
  for (const auto& result : model->results()) {
    if (arguments.output.empty()) print(result.name, named.at(result.name));
  }
  if (times.empty()) return;
  std::sort(times.begin(), times.end());
  std::printf("open: %.2f ms\nfirst run: %.2f ms\nrun: %.3f ms (median of %zu)\nmemory: %.1f MB\n",
              ms_to_open, first, times[times.size() / 2], times.size(), peak_memory());
}

// The feeds of an input in the steps of a training: batches of rows of a file, or one entry of the
// file per step, or the whole file in each step.
class Source {
 public:
  Source(const Declared& input, const std::string& path, size_t batch) : file_(path) {
    Shape fed = file_.shape();
    const size_t rank = input.shape.size();
    if (fed.size() == rank + 1) {
      entries_ = fed[0];
      fed.erase(fed.begin());
    } else if (fed.size() == rank && rank > 0) {
      rows_ = batch > 0 ? batch : static_cast<size_t>(std::max<int64_t>(0, input.shape[0]));
      if (rows_ == 0) throw Error("give --batch: the program leaves it open");
      entries_ = fed[0] / rows_;
      fed[0] = rows_;
    }
    input.require(file_.type(), fed);
    if (entries_ == 0 && rank > 0) throw Error(path + " has fewer rows than a batch");
  }

  bool has_rows() const { return rows_ > 0; }
  bool has_entries() const { return rows_ == 0 && entries_ > 0; }
  // The number of batches, or entries, in the file; 0: each step is fed the whole file.
  size_t entries() const { return entries_; }

  // Throws Error unless this file and `other` have rows, or entries, for an equal number of steps.
  void require_as_many(const Source& other) const {
    const size_t rows = file_.shape()[0], others = other.file_.shape()[0];
    if (rows * std::max<size_t>(1, other.rows_) == others * std::max<size_t>(1, rows_)) return;
    throw Error(concat(file_.path(), " has ", rows, " rows, and ", other.file_.path(), " has ",
                       others, ": give files for as many steps"));
  }

  // Throws Error unless there is an entry for each step, or for each step of an epoch.
  void require_entries(size_t steps, size_t of_epoch) const {
    if (entries_ >= steps || entries_ == of_epoch) return;
    throw Error(concat(file_.path(), " has ", entries_, " entries for ", steps, " steps"));
  }

  // The feed of step `step` of the training, which is batch `batch` of an epoch.
  Tensor at(size_t step, size_t batch) {
    if (entries_ == 0) return file_.read();
    if (has_rows()) return file_.rows(batch * rows_, rows_);
    Tensor entry = file_.rows(step % entries_, 1);
    entry.shape.erase(entry.shape.begin());
    return entry;
  }

 private:
  NpyFile file_;
  size_t rows_ = 0;  // number of rows per batch; 0: the file is not read in batches
  // Number of batches or entries in the file; 0: each step is fed the whole file.
  size_t entries_ = 0;
};

// The number of steps of an epoch: the batches of files that are read by rows, or else the entries
// of files with one for each step. Throws Error if files differ in it.
size_t steps_of(const std::vector<Source>& sources) {
  const Source* by_rows = nullptr;
  const Source* by_entries = nullptr;
  for (const auto& source : sources) {
    if (source.entries() == 0) continue;
    const Source*& first = source.has_rows() ? by_rows : by_entries;
    if (first == nullptr) first = &source;
    first->require_as_many(source);
  }
  const Source* counted = by_rows != nullptr ? by_rows : by_entries;
  return counted != nullptr ? counted->entries() : 1;
}

float loss_of(const Tensor& value) {
  if (value.count() != 1) throw Error("the first result is not a loss: it has several elements");
  return cast(value, ElementType::f32).data<float>()[0];
}

void train(Model* model, const Arguments& arguments) {
  const auto files = files_of(*model, arguments);
  if (model->results().empty()) throw Error("the program has no result that could be the loss");
  std::vector<Source> sources;
  for (size_t i = 0; i < files.size(); ++i) {
    sources.emplace_back(model->inputs()[i], files[i], arguments.batch);
  }
  const size_t of_epoch = steps_of(sources);
  const size_t steps = arguments.steps > 0 ? arguments.steps : arguments.epochs * of_epoch;
  for (const auto& source : sources) {
    if (source.has_entries()) source.require_entries(steps, of_epoch);
  }
  // The folder is created before the training, so that an error occurs before it, not after.
  if (!arguments.save.empty()) make_folder(arguments.save);
  for (size_t step = 0; step < steps; ++step) {
    Tensors feeds;
    for (auto& source : sources) feeds.push_back(source.at(step, step % of_epoch));
    const float loss = loss_of(model->run(feeds).front());
    if (step % arguments.log == 0 || step + 1 == steps) {
      std::printf("step: %zu loss: %.8g\n", step, static_cast<double>(loss));
      std::fflush(stdout);
    }
  }
  if (!arguments.save.empty()) model->save(arguments.save);
}

}  // namespace

int command_line(int count, char** arguments) {
  try {
    const std::vector<std::string> words(arguments + 1, arguments + count);
    if (std::find(words.begin(), words.end(), "--help") != words.end()) {
      std::fputs(kUsage, stdout);
      return 0;
    }
    const Arguments parameters = parsed(words);
    const auto start = Clock::now();
    Model model(parameters.model, {{static_cast<int>(parameters.threads), 1}, parameters.seed});
    if (!parameters.load.empty()) model.load(parameters.load);
    const double ms_to_open = ms_since(start);
    parameters.trains ? train(&model, parameters) : infer(&model, parameters, ms_to_open);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", arguments[0], printable(error.what()).c_str());
    return 2;
  }
}

}  // namespace native
