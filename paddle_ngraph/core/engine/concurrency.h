// Number of concurrent runs of one engine.
#pragma once

#include <atomic>

namespace paddle_ngraph {

// Overlapping runs finish sooner if each has cores of its own than if all share every core: one
// image uses two cores less well than two images do. Overlap is an average over the last runs, so
// that two runs that overlap by chance do not cause the build of a function for overlapping runs.
// Only speed depends on the average, so races may lose a run of it.
class Concurrency {
 public:
  // A run in progress, from construction to destruction.
  class Run {
   public:
    explicit Run(Concurrency* owner);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // Whether no other run of the engine was in progress when this run began.
    bool is_alone() const { return is_alone_; }

    // Number of groups of equal size (streams) into which `threads` threads are divided, each for
    // one run at a time; a power of two.
    int streams(int threads) const;

   private:
    Concurrency* owner_;
    bool is_alone_;
  };

 private:
  std::atomic<int> running_{0};
  std::atomic<int> average_{0};  // average number of concurrent runs, times 1,024
};

}  // namespace paddle_ngraph
