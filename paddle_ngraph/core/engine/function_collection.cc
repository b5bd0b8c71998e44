#include "core/engine/function_collection.h"

#include <exception>
#include <utility>

#include "core/common/error.h"

namespace paddle_ngraph {

void FunctionCollection::begin(const std::string& folder, const Digest& identity) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!folder_.empty()) throw NgraphError("another thread saves a model of the same graph");
  folder_ = folder;
  identity_ = identity;
  failure_.clear();
}

std::string FunctionCollection::end() {
  std::lock_guard<std::mutex> lock(mutex_);
  folder_.clear();
  return std::exchange(failure_, {});
}

bool FunctionCollection::is_active() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !folder_.empty();
}

bool FunctionCollection::add(const std::optional<DiskKey>& key, const BuiltFunction& built,
                             const IsValid& is_valid) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (folder_.empty()) return false;
  try {
    if (!key) throw NgraphError("it involves a converter from outside the package");
    store_function_in(folder_, identity_, *key, built, is_valid);
  } catch (const std::exception& error) {  // reported by end(); the run continues
    failure_ = error.what();
  }
  return true;
}

}  // namespace paddle_ngraph
