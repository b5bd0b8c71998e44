#include "core/common/resting_threads.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <dirent.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace paddle_ngraph {

namespace {

constexpr auto kPause = std::chrono::microseconds(200);
constexpr char kTasks[] = "/proc/self/task";

struct Closer {
  void operator()(DIR* folder) const { closedir(folder); }
  void operator()(std::FILE* file) const { std::fclose(file); }
};

// The number after `name` in the text of a status file; -1 if there is none.
long number_after(const std::string& text, const char* name) {
  const auto at = text.find(name);
  return at == std::string::npos ? -1 : std::atol(text.c_str() + at + std::strlen(name));
}

// How often a thread was switched away, if it sleeps; -1 if it runs, or waits for a processor. 0
// for a thread that has ended meanwhile.
long switches_of_sleeping(const std::string& id) {
  const std::string path = std::string(kTasks) + "/" + id + "/status";
  const std::unique_ptr<std::FILE, Closer> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return 0;
  std::string text(8192, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  const auto state = text.find("State:\t");
  if (state == std::string::npos) return 0;
  if (text[state + 7] != 'S') return -1;
  return number_after(text, "\nvoluntary_ctxt_switches:") +
         number_after(text, "nonvoluntary_ctxt_switches:");
}

// The ids of all threads but this one that sleep, with their switches; empty and false if one runs.
std::pair<bool, std::vector<std::pair<std::string, long>>> sleeping_threads() {
  std::vector<std::pair<std::string, long>> found;
  const std::unique_ptr<DIR, Closer> folder(opendir(kTasks));
  if (folder == nullptr) return {false, {}};
  const std::string own = std::to_string(syscall(SYS_gettid));
  while (const dirent* entry = readdir(folder.get())) {
    if (entry->d_name[0] == '.' || own == entry->d_name) continue;
    const long switches = switches_of_sleeping(entry->d_name);
    if (switches < 0) return {false, {}};
    found.emplace_back(entry->d_name, switches);
  }
  return {true, std::move(found)};
}

}  // namespace

bool other_threads_rest(std::chrono::milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (true) {
    const auto first = sleeping_threads();
    if (first.first && sleeping_threads() == first) return true;
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace paddle_ngraph
