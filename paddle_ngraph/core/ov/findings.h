// What operators find wrong in a run of a model whose sizes only runs tell.
//
// They throw nothing there. The plugin looks at the sizes of several operators before it computes
// the first of them, and each compares them with those of the last run that has computed it. Where
// a run ends in between, the next one computes with sizes of that run, and with whatever is in
// memory there. So an operator says what is wrong, goes on with something that is right, and the
// run is refused when it is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>

#include <openvino/core/model.hpp>
#include <sys/types.h>
#include <unistd.h>

#include "core/common/error.h"
#include "core/ov/extension_ops.h"

namespace paddle_ngraph {

// Those of one model. Its operators know it by a number, which is stored with it.
class Findings {
 public:
  // That of a model of which every size is known: its operators throw.
  static constexpr int64_t kNone = 0;

  // Has the operators of a model say what they find, if any size in it is open. Returns the number.
  static int64_t number(ov::Model* model);

  // Those of this number: the same ones for all who ask while anyone has them. nullptr for kNone.
  static std::shared_ptr<Findings> of(int64_t number);

  // Called by an operator. Returns whether a run goes on that will ask for it.
  static bool say(int64_t number, const std::string& text);

  Findings();
  ~Findings();
  Findings(const Findings&) = delete;
  Findings& operator=(const Findings&) = delete;

  // Calls run() and returns what it returns. Throws InvalidInput if its operators have said
  // something. If runs overlap and something was said, each shows alone whether it was that one.
  template <typename Run>
  auto watch(const Run& run) {
    OfProcess& now = of_process();
    {
      const auto among_others = begin(&now);
      const Watched watched(&now);
      auto done = run();
      if (!watched.has_met_any()) return done;
      if (const auto text = watched.own()) throw InvalidInput(*text);
    }
    const auto alone = wait_for_others(&now);
    const Watched watched(&now);
    auto done = run();
    if (const auto text = watched.own()) throw InvalidInput(*text);
    return done;
  }

 private:
  // A forked process has its own: threads of the other one are not there to end their runs.
  struct OfProcess {
    const pid_t process = getpid();
    std::mutex gate;  // nobody begins while somebody waits for all others
    std::shared_mutex runs;
    std::atomic<int> running{0};
    std::atomic<uint64_t> begun{0};
    std::atomic<uint64_t> said{0};
    std::mutex text_mutex;
    std::string text;  // what was said first; none: nothing since a run has asked
  };

  // A run, from its beginning to its end.
  class Watched {
   public:
    explicit Watched(OfProcess* now);
    ~Watched();
    Watched(const Watched&) = delete;
    Watched& operator=(const Watched&) = delete;

    // Whether anything was said meanwhile.
    bool has_met_any() const;
    // What was said first, if no other run went on meanwhile.
    std::optional<std::string> own() const;

   private:
    OfProcess* now_;
    bool began_alone_;
    uint64_t begun_;
    uint64_t said_;
  };

  OfProcess& of_process();
  static std::shared_lock<std::shared_mutex> begin(OfProcess* now);
  static std::unique_lock<std::shared_mutex> wait_for_others(OfProcess* now);

  std::atomic<OfProcess*> now_;
};

// An operator that looks at contents.
class FindingOp : public ExtensionOp {
 public:
  OPENVINO_OP("FindingOp", "paddle_ngraph", ExtensionOp);

  using ExtensionOp::ExtensionOp;

  virtual void set_findings(int64_t number) = 0;

 protected:
  // Says what is wrong; throws it as InvalidInput where no run asks.
  static void refuse(int64_t findings, const std::string& text);
};

}  // namespace paddle_ngraph
