// A model folder that is open: its manifest, functions and variables.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/function.h"
#include "runtime/tensor.h"

namespace native {

// An input, a result or a variable of the program, as the manifest declares it.
struct Declared {
  std::string name;
  ElementType type;
  std::vector<int64_t> shape;  // declared shape; -1: dynamic dimension
  std::string file;            // name of the file with a variable's initial value

  // Throws Error, with the name of the variable, unless a tensor of this dtype and shape fits the
  // declaration.
  void require(ElementType given_type, const Shape& given) const;
};

struct Options {
  Threads threads;
  // Seed of random numbers; without a value, the manifest's seed is used.
  std::optional<uint64_t> seed;
};

class Model {
 public:
  // Opens a model folder. Throws Error if it is incomplete or damaged, or belongs to another
  // program.
  explicit Model(const std::string& folder, const Options& options = {});

  const std::vector<Declared>& inputs() const { return inputs_; }
  const std::vector<Declared>& results() const { return results_; }
  const std::vector<Declared>& variables() const { return variables_; }

  // Whether a run changes state that later runs read: variables, or the random stream.
  bool has_state() const { return has_state_; }

  // Runs the program on an array for each input, in the order of the inputs. Thread-safe; runs that
  // change state are serialized. Throws Error for arrays of another dtype or shape than declared.
  Tensors run(const Tensors& feeds);

  // load() reads all variables from FOLDER/NAME.npy; save() writes them there.
  void load(const std::string& folder);
  void save(const std::string& folder);

 private:
  friend class Run;

  void read_manifest(const Json& manifest, const Options& options);

  std::string folder_;
  std::vector<Declared> inputs_, results_, variables_;
  std::map<std::string, Tensor> values_;  // current values of the variables, by name
  std::deque<Function> functions_;
  Stream stream_;
  bool has_state_ = false;
  std::mutex mutex_;
};

}  // namespace native
