// An open model directory: the manifest, the functions and the variables.
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

// The declaration of an input, a result, or a variable that outlives runs.
struct Declared {
  std::string name;
  ElementType type;
  std::vector<int64_t> shape;  // -1 for dynamic dimensions
  std::string file;            // the initial value of a variable

  // Throws Error, with the name, unless a tensor of this dtype and shape is valid.
  void require(ElementType given_type, const Shape& given) const;
};

struct Options {
  Threads threads;
  std::optional<uint64_t> seed;  // seed of random numbers; absent: the manifest's
};

class Model {
 public:
  // Throws Error if the directory is incomplete or damaged, or belongs to another program.
  explicit Model(const std::string& folder, const Options& options = {});

  const std::vector<Declared>& inputs() const { return inputs_; }
  const std::vector<Declared>& results() const { return results_; }
  const std::vector<Declared>& variables() const { return variables_; }

  // Whether runs change persistent state: variables, or the random stream.
  bool has_state() const { return has_state_; }

  // Runs the program on an array for each input, in the order of the inputs. Thread-safe; runs that
  // change state are serialized. Throws Error for arrays of another dtype or shape than declared.
  Tensors run(const Tensors& feeds);

  // Reads the variables from NAME.npy in a folder, or writes them there.
  void load(const std::string& folder);
  void save(const std::string& folder);

 private:
  friend class Run;

  void read_manifest(const Json& manifest, const Options& options);

  std::string folder_;
  std::vector<Declared> inputs_, results_, variables_;
  std::map<std::string, Tensor> values_;  // values of the variables, by name
  std::deque<Function> functions_;
  Stream stream_;
  bool has_state_ = false;
  std::mutex mutex_;
};

}  // namespace native
