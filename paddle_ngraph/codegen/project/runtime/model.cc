#include "runtime/model.h"

#include <random>
#include <utility>

#include "ngraph_model.h"
#include "runtime/npy.h"
#include "runtime/run.h"

namespace native {

namespace {

constexpr int64_t kFormat = 3;
constexpr size_t kMaxRank = NGRAPH_MODEL_MAX_RANK;

Declared parsed(const Json& row, bool has_file) {
  Declared result{row.at("name").text(), type_named(row.at("dtype").text()),
                  row.at("shape").numbers(), has_file ? row.at("file").text() : ""};
  if (result.shape.size() > kMaxRank) throw Error(result.name + " has too many dimensions");
  return result;
}

// The random stream that Python has after paddle.seed(seed).
Stream seeded(uint64_t seed) {
  std::seed_seq sequence({seed});
  return Stream(sequence);
}

void require_processor(const std::string& name) {
  const bool can = name == "avx512" ? __builtin_cpu_supports("avx512f") != 0
                   : name == "avx2" ? __builtin_cpu_supports("avx2") != 0
                                    : name == "any";
  if (!can) throw Error(concat("the project was generated for a processor with ", name));
}

}  // namespace

void Declared::require(ElementType given_type, const Shape& given) const {
  bool fits = given_type == type && given.size() == shape.size();
  for (size_t axis = 0; fits && axis < given.size(); ++axis) {
    fits = shape[axis] < 0 || shape[axis] == static_cast<int64_t>(given[axis]);
  }
  if (fits) return;
  std::string wanted;
  for (int64_t size : shape) {
    wanted += (wanted.empty() ? "" : ", ") + (size < 0 ? std::string("?") : std::to_string(size));
  }
  throw Error(concat(name, " is ", name_of(type), " [", wanted, "], and ", name_of(given_type), " ",
                     text_of(given), " was given"));
}

Model::Model(const std::string& folder, const Options& options) : folder_(folder) {
  const std::string path = folder + "/manifest.json";
  const std::string text = read_text(path);
  try {
    read_manifest(Json::parsed(text), options);
  } catch (const std::out_of_range& error) {
    throw Error(concat(path, " is damaged: ", error.what()));
  } catch (const Error& error) {
    throw Error(concat(path, ": ", error.what()));
  }
  load(folder + "/variables");
}

void Model::read_manifest(const Json& manifest, const Options& options) {
  if (manifest.at("format").integer() != kFormat) throw Error("it is of another release");
  if (manifest.at("program").text() != program_id()) {
    throw Error("it belongs to another program than main.cc");
  }
  require_processor(manifest.at("processor").text());
  for (const auto& file : manifest.at("files").list()) {
    const std::string path = path_in(folder_, file.at("path").text());
    const uint64_t there = size_of_file(path), wanted = file.at("bytes").integer();
    if (there != wanted) {
      throw Error(concat(path, " has ", there, " bytes and should have ", wanted));
    }
  }
  for (const auto& row : manifest.at("inputs").list()) inputs_.push_back(parsed(row, false));
  for (const auto& row : manifest.at("results").list()) results_.push_back(parsed(row, false));
  for (const auto& row : manifest.at("variables").list()) variables_.push_back(parsed(row, true));
  for (const auto& row : manifest.at("functions").list()) {
    functions_.emplace_back(folder_, row, options.threads);
    has_state_ |= functions_.back().is_stochastic();
  }
  has_state_ |= manifest.at("writes_variables").truth();
  const auto seed = static_cast<uint64_t>(manifest.at("seed").integer());
  stream_ = seeded(options.seed.value_or(seed));
}

Tensors Model::run(const Tensors& feeds) {
  if (feeds.size() != inputs_.size()) {
    throw Error(
        concat("the program has ", inputs_.size(), " inputs, and ", feeds.size(), " were given"));
  }
  for (size_t i = 0; i < feeds.size(); ++i) inputs_[i].require(feeds[i].type, feeds[i].shape);
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  if (has_state_) lock.lock();
  Run run(this, feeds);
  program(run);
  return run.take_results();
}

void Model::load(const std::string& folder) {
  std::map<std::string, Tensor> read;
  for (const auto& variable : variables_) {
    NpyFile file(folder + "/" + file_name_of(variable.name) + ".npy");
    variable.require(file.type(), file.shape());
    read[variable.name] = file.read();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  values_ = std::move(read);
}

void Model::save(const std::string& folder) {
  make_folder(folder);
  std::lock_guard<std::mutex> lock(mutex_);
  write_npy(folder, values_);
}

}  // namespace native
