#include "core/engine/user_secret.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/common/random_bytes.h"
#include "core/engine/files.h"

namespace paddle_ngraph {

namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "secret";
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;

std::string home() {
  const char* const variable = std::getenv("HOME");
  if (variable != nullptr) return variable;
  const passwd* const user = getpwuid(geteuid());
  return user == nullptr ? std::string() : user->pw_dir;
}

// $XDG_STATE_HOME/paddle_ngraph, created if it is missing; empty if only the user can write to no
// such folder.
std::string state_folder() {
  const char* const variable = std::getenv("XDG_STATE_HOME");
  fs::path folder = variable == nullptr ? "" : variable;
  if (!folder.is_absolute()) folder = fs::path(home()) / ".local" / "state";
  if (!folder.is_absolute()) return {};
  folder /= "paddle_ngraph";
  create_own_folder(folder);
  return is_own_folder(folder) ? folder.string() : std::string();
}

std::optional<Digest> read(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) return std::nullopt;
  Digest secret;
  const bool is_private = S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
                          (status.st_mode & kOthers) == 0 &&
                          status.st_size == static_cast<off_t>(secret.bytes.size());
  if (!is_private) return std::nullopt;
  const ssize_t count = ::read(file.get(), secret.bytes.data(), secret.bytes.size());
  if (count != static_cast<ssize_t>(secret.bytes.size())) return std::nullopt;
  return secret;
}

// Writes a new secret. If another process has written one meanwhile, that one stays.
void create(const std::string& folder, const std::string& path) {
  Digest secret;
  fill_with_random_bytes(secret.bytes.data(), secret.bytes.size());
  TemporaryFile file(folder);  // with mode 0600
  write_all(file.descriptor(), secret.bytes.data(), secret.bytes.size());
  fsync(file.descriptor());
  // A link, unlike a rename, fails if the file exists. An existing file that cannot be read as a
  // secret is replaced.
  if (link(file.path(), path.c_str()) == 0) return;
  if (errno != EEXIST || !read(path)) file.move_to(path);
}

std::optional<Digest> read_or_create(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  const std::string path = folder + "/" + kName;
  if (auto secret = read(path)) return secret;
  try {
    create(folder, path);
  } catch (const std::exception&) {  // a folder that cannot be written to
  }
  return read(path);
}

}  // namespace

std::optional<Digest> user_secret(const std::string& cache_folder, bool is_trusted) {
  if (!is_trusted) {
    if (auto secret = read_or_create(state_folder())) return secret;
  }
  return read_or_create(cache_folder);
}

}  // namespace paddle_ngraph
