// How many runs of one engine go on at a time.
#pragma once

#include <atomic>

namespace paddle_ngraph {

// Runs that overlap finish sooner if each has some of the cores to itself than if all of them share
// every core: one picture does not fill two cores as well as two pictures do. Whether they overlap
// is an average over the last runs, so that a function for overlapping runs is not built for two
// that met by chance. Only the speed depends on it, so races may lose a run of the average.
class Concurrency {
 public:
  // A run, from its beginning to its end.
  class Run {
   public:
    explicit Run(Concurrency* owner);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

    // Whether no other run went on when it began.
    bool is_alone() const { return is_alone_; }

    // How many groups of equal size `threads` threads should form, each for one run at a time: a
    // power of two.
    int streams(int threads) const;

   private:
    Concurrency* owner_;
    bool is_alone_;
  };

 private:
  std::atomic<int> running_{0};
  std::atomic<int> average_{0};  // of how many run, by 1,024
};

}  // namespace paddle_ngraph
