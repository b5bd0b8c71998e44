#include "core/paddle/data_dependency_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include <unistd.h>

#include "core/common/error.h"
#include "core/common/fork_safe_mutex.h"

namespace paddle_ngraph {

namespace {

using Clock = std::chrono::steady_clock;

// A waiting thread spins for this time before it sleeps: a wakeup takes as long.
constexpr std::chrono::microseconds kSpinDuration(100);

void spin_until_changed(const std::atomic<size_t>& changes, size_t seen) {
  const auto end = Clock::now() + kSpinDuration;
  while (changes == seen && Clock::now() < end) std::this_thread::yield();
}

// Helper threads for runs. They sleep until there is a run, and end with the process.
class WorkerThreads {
 public:
  using Work = std::function<void()>;

  static WorkerThreads& instance() {
    static WorkerThreads* const helpers = std::make_unique<WorkerThreads>().release();
    return *helpers;
  }

  // Requests that `count` threads call `work`. Fewer do if no more threads can be created.
  void request(size_t count, const void* run, const Work& work) {
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    // In a forked process, neither the threads nor their requests exist.
    if (process_ != getpid()) {
      process_ = getpid();
      pending_.clear();
      num_idle_ = 0;
      // The condition variable is leaked: threads that do not exist in this process wait for it,
      // and its destructor would wait for them.
      static_cast<void>(wakeup_.release());
      wakeup_ = std::make_unique<std::condition_variable_any>();
    }
    for (size_t i = 0; i < count; ++i) pending_.push_back({run, work});
    ++changes_;
    try {
      for (; num_idle_ < pending_.size(); ++num_idle_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
      // No thread is created: the calling thread does the work alone.
    }
    wakeup_->notify_all();
  }

  // Withdraws the requests for help that no thread has accepted: the run is over.
  void withdraw(const void* run) {
    const std::lock_guard<ForkSafeMutex> lock(mutex_);
    const auto is_of_run = [run](const auto& request) { return request.first == run; };
    pending_.erase(std::remove_if(pending_.begin(), pending_.end(), is_of_run), pending_.end());
  }

 private:
  [[noreturn]] void serve() {
    for (size_t seen = changes_;;) {
      Work work;
      {
        spin_until_changed(changes_, seen);
        std::unique_lock<ForkSafeMutex> lock(mutex_);
        wakeup_->wait(lock, [this] { return !pending_.empty(); });
        work = std::move(pending_.front().second);
        pending_.pop_front();
        --num_idle_;
        seen = changes_;
      }
      work();
      work = nullptr;
      const std::lock_guard<ForkSafeMutex> lock(mutex_);
      ++num_idle_;
    }
  }

  ForkSafeMutex mutex_;
  pid_t process_ = getpid();
  std::deque<std::pair<const void*, Work>> pending_;
  size_t num_idle_ = 0;  // number of idle threads, including those about to sleep
  std::atomic<size_t> changes_{0};
  std::unique_ptr<std::condition_variable_any> wakeup_ =
      std::make_unique<std::condition_variable_any>();
};

}  // namespace

// One run, by any number of threads that each call work(). A helper may arrive after its end.
class DataDependencyEngine::Run {
 public:
  explicit Run(const DataDependencyEngine& engine)
      : engine_(engine),
        fetched_(engine.num_fetches_),
        readers_(engine.readers_.size()),
        ready_(engine.steps_.size(), begin_),
        ms_(engine.steps_.size()) {
    for (size_t i = 0; i < engine.steps_.size(); ++i) {
      pending_.push_back(i);
      missing_.push_back(engine.steps_[i].after.size());
    }
    for (size_t i = 0; i < readers_.size(); ++i) readers_[i] = engine.readers_[i];
  }

  // The loop of one thread: runs steps until none is left to start.
  void work() {
    auto free_since = begin_;
    while (const auto step = take(free_since)) {
      std::exception_ptr failure;
      try {
        compute(*step);
      } catch (...) {  // the error is stored: finish() throws it again
        failure = std::current_exception();
      }
      free_since = end(*step, std::move(failure));
    }
  }

  // Waits for the steps of other threads; returns the fetched tensors, and the time of each step.
  std::pair<std::vector<phi::DenseTensor>, std::vector<double>> finish() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!busy_.empty()) wait_for_change(&lock);
    if (!failures_.empty()) std::rethrow_exception(std::exchange(failures_, {}).begin()->second);
    return {std::move(fetched_), std::move(ms_)};
  }

 private:
  void compute(size_t number) {
    const auto& step = engine_.steps_[number];
    auto results = step.compute();
    for (size_t i = 0; i < step.writes.size() && i < results.size(); ++i) {
      const size_t variable = step.writes[i];
      for (size_t column : engine_.columns_[variable]) fetched_[column] = results[i];
      if (readers_[variable] > 0) *engine_.variables_[variable] = std::move(results[i]);
    }
    for (size_t variable : step.reads) {
      if (--readers_[variable] == 0) engine_.variables_[variable]->clear();
    }
  }

  // Waits for and returns the next step to start, for a thread that has been free since that time.
  // Returns nothing when no step is left to start.
  std::optional<size_t> take(Clock::time_point free_since) {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!pending_.empty()) {
      for (auto it = pending_.begin(); it != pending_.end(); ++it) {
        const size_t number = *it;
        const Cores* group = missing_[number] > 0 ? nullptr : free_group(number);
        if (group == nullptr) continue;
        pending_.erase(it);
        busy_[number] = group;
        ready_[number] = std::max(ready_[number], free_since);
        for (int core : *group) ready_[number] = std::max(ready_[number], cores_[core]);
        return number;
      }
      wait_for_change(&lock);
    }
    return std::nullopt;
  }

  const Cores* free_group(size_t number) const {
    const auto is_busy = [this](int core) {
      return std::any_of(busy_.begin(), busy_.end(), [core](const auto& each) {
        return std::find(each.second->begin(), each.second->end(), core) != each.second->end();
      });
    };
    for (const auto& group : engine_.steps_[number].groups) {
      if (std::none_of(group.begin(), group.end(), is_busy)) return &group;
    }
    return nullptr;
  }

  // Records the end of step `number`; returns the time.
  Clock::time_point end(size_t number, std::exception_ptr failure) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto now = Clock::now();
    ms_[number] = std::chrono::duration<double, std::milli>(now - ready_[number]).count();
    for (int core : *busy_[number]) cores_[core] = now;
    busy_.erase(number);
    if (failure == nullptr) {
      for (size_t follower : engine_.followers_[number]) {
        --missing_[follower];
        // A step with several predecessors is ready when the last one ends.
        ready_[follower] = now;
      }
    } else {
      failures_[number] = std::move(failure);
      pending_.clear();
    }
    ++changes_;
    if (num_idle_ > 0) changed_.notify_all();
    return now;
  }

  void wait_for_change(std::unique_lock<std::mutex>* lock) {
    const size_t seen = changes_;
    lock->unlock();
    spin_until_changed(changes_, seen);
    lock->lock();
    ++num_idle_;
    changed_.wait(*lock, [&] { return changes_ != seen; });
    --num_idle_;
  }

  const DataDependencyEngine& engine_;
  const Clock::time_point begin_ = Clock::now();
  std::vector<phi::DenseTensor> fetched_;
  std::vector<std::atomic<size_t>> readers_;
  std::mutex mutex_;                      // guards the members below
  std::vector<Clock::time_point> ready_;  // time at which the inputs of each step were complete
  std::vector<double> ms_;
  std::map<int, Clock::time_point> cores_;  // end of the last step on each core
  std::condition_variable changed_;
  // Number of changes that idle threads wait for; written with the mutex.
  std::atomic<size_t> changes_{0};
  size_t num_idle_ = 0;
  std::deque<size_t> pending_;
  std::vector<size_t> missing_;
  std::map<size_t, const Cores*> busy_;
  std::map<size_t, std::exception_ptr> failures_;
};

DataDependencyEngine::DataDependencyEngine(std::vector<Step> steps,
                                           std::vector<phi::DenseTensor*> variables,
                                           const std::vector<size_t>& fetches)
    : steps_(std::move(steps)),
      variables_(std::move(variables)),
      followers_(steps_.size()),
      readers_(variables_.size()),
      columns_(variables_.size()),
      num_fetches_(fetches.size()) {
  const auto require = [](bool holds) {
    if (!holds) throw NgraphError("a step waits for what is not before it");
  };
  const auto is_known = [this](size_t number) { return number < variables_.size(); };
  for (size_t i = 0; i < steps_.size(); ++i) {
    for (size_t before : steps_[i].after) {
      require(before < i);
      followers_[before].push_back(i);
    }
    require(std::all_of(steps_[i].writes.begin(), steps_[i].writes.end(), is_known));
    for (size_t variable : steps_[i].reads) {
      require(is_known(variable));
      ++readers_[variable];
    }
  }
  for (size_t column = 0; column < fetches.size(); ++column) {
    require(is_known(fetches[column]));
    columns_[fetches[column]].push_back(column);
  }
}

std::vector<phi::DenseTensor> DataDependencyEngine::run(size_t threads) {
  const auto run = std::make_shared<Run>(*this);
  auto& helpers = WorkerThreads::instance();
  if (threads > 1) helpers.request(threads - 1, run.get(), [run] { run->work(); });
  run->work();
  if (threads > 1) helpers.withdraw(run.get());
  try {
    auto [fetched, ms] = run->finish();
    last_ms_ = std::move(ms);
    return fetched;
  } catch (...) {
    for (auto* variable : variables_) variable->clear();
    throw;
  }
}

}  // namespace paddle_ngraph
