#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pipetrain/comm/control.h"
#include "pipetrain/device/event.h"
#include "pipetrain/error.h"
#include "pipetrain/progress.h"

namespace pipetrain {

// Ends the job when an action does not finish within its deadline, when a communicator reports an
// error, or on SIGTERM or SIGINT. It runs on a thread of its own that only polls events; it never
// frees, synchronises or calls MPI, so it works while everything else is stuck.
//
// NCCL itself never reports a peer that died on the same host: without this a job would wait for
// ever.
class Watchdog {
 public:
  // Called once on the watchdog's thread with the reason and the exit code of the job: lost, or
  // what an error of the device itself has. Must not return to normal work.
  using Expire = std::function<void(const std::string& reason, ExitCode code)>;

  Watchdog(std::chrono::duration<double> timeout, Expire expire);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Prints "pipetrain: <reason>" on standard error and, a second later (half a one on a signal),
  // calls _exit(code).
  static Expire exit_process();

  // Registers something that will be submitted again and again; returns its number. `text` says who
  // does what and whom it waits for. Before the first submitted(), on a thread whose device is that
  // of all events.
  size_t add(const Event& end, std::string text);
  // Called before a step reuses the events of the step before the last one, which has ended.
  void begin_step();
  // Item `number` was submitted: it has to be done within the deadline after all items submitted
  // before it.
  void submitted(size_t number);
  // Polled beside the events: empty, or the asynchronous error of a communicator.
  void set_error_probe(std::function<std::string()> probe);

  // Which rank is waited for on the host now, -1 if none: for the message. Null: not known.
  void set_awaited(std::function<int()> awaited);

  // Called with the reason before the job ends, on a thread of its own: a file system that is stuck
  // must not keep the job from ending. Null: nobody.
  void set_recorder(std::function<void(const std::string& reason)> recorder);

  // This rank ends with an error. What it frees from now on waits for its device, and that for
  // peers which may never answer: for no longer than the deadline, and who ends the job says this
  // text.
  void fail(const std::string& text);

  // Forgets all items and the probe, before what they refer to goes away.
  void clear();

  // Work on the host goes on: the deadlines of all host phases begin anew.
  void progress();

  // A deadline for what the host itself does, connecting say: for each time from construction or
  // the last progress() to the next one or destruction.
  class HostPhase {
   public:
    HostPhase(Watchdog* watchdog, std::string text);  // null: no deadline
    ~HostPhase();
    HostPhase(const HostPhase&) = delete;
    HostPhase& operator=(const HostPhase&) = delete;

   private:
    Watchdog* watchdog_;
  };

 private:
  using Clock = std::chrono::steady_clock;
  struct Item {
    const Event* end = nullptr;
    std::string text;
  };

  void poll();
  void drop_ended();
  std::string verdict() const;  // empty: all is well
  std::string pending_items() const;
  std::string phase() const;

  const std::chrono::duration<double> timeout_;
  const Expire expire_;
  mutable std::mutex mutex_;
  int device_ = -1;  // of the events; -1: none is registered
  std::vector<Item> items_;
  std::vector<size_t> queue_;  // a ring of submitted items, oldest at head_
  size_t head_ = 0;
  size_t tail_ = 0;
  Clock::time_point head_since_;
  std::vector<std::pair<std::string, Clock::time_point>> phases_;
  std::function<std::string()> error_probe_;
  std::function<int()> awaited_;
  std::function<void(const std::string&)> recorder_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// While it lives, what its thread reports (report_progress) and what the other ranks of `control`
// do begins the deadlines of `watchdog` anew, so that neither a rank that works nor one that waits
// for it is ended. A rank that stands still tells nobody anything. Messages name the rank that is
// waited for.
class SharedProgress {
 public:
  SharedProgress(Watchdog& watchdog, Control& control);
  ~SharedProgress();
  SharedProgress(const SharedProgress&) = delete;
  SharedProgress& operator=(const SharedProgress&) = delete;

 private:
  Watchdog& watchdog_;
  Control& control_;
  ProgressListener own_;
};

// Requests that signals leave behind; process-wide.
//   SIGTERM, SIGINT: the watchdog ends the job. SIGUSR1: training stops, at most three steps later:
//   two are submitted ahead, and all ranks must agree.
void install_signal_handlers();
bool termination_requested();
bool stop_requested();

}  // namespace pipetrain
