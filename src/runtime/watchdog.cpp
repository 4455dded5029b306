#include "pipetrain/runtime/watchdog.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <future>

#include "pipetrain/device/info.h"

namespace pipetrain {

namespace {

constexpr auto poll_interval = std::chrono::milliseconds(20);
constexpr size_t most_items_printed = 8;
constexpr auto time_for_others = std::chrono::seconds(1);
// After a SIGTERM mpirun gives its ranks a second, or only until the first of them has left.
constexpr auto time_to_record = std::chrono::milliseconds(300);
constexpr auto time_for_others_at_signal = std::chrono::milliseconds(500);

volatile sig_atomic_t termination_signal = 0;  // SIGTERM or SIGINT, once it came
volatile sig_atomic_t sigusr1_seen = 0;

void record_within_time(const std::function<void(const std::string&)>& recorder,
                        const std::string& reason) {
  std::packaged_task<void()> task([recorder, reason] { recorder(reason); });
  const std::future<void> done = task.get_future();
  std::thread(std::move(task)).detach();
  done.wait_for(time_to_record);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  action.sa_handler = [](int signal) { termination_signal = signal; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  action.sa_handler = [](int) { sigusr1_seen = 1; };
  sigaction(SIGUSR1, &action, nullptr);
}

bool termination_requested() {
  return termination_signal != 0;
}
bool stop_requested() {
  return sigusr1_seen != 0;
}

Watchdog::Expire Watchdog::exit_process() {
  return [](const std::string& reason, ExitCode code) {
    const std::string line = "pipetrain: " + reason + "\n";
    // write(2): stdio's lock may be held by a thread that is stuck.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
    // mpirun ends all ranks as soon as one has left, by SIGKILL if it had signalled them before.
    // Those that wait in the same chain find their deadlines passed at nearly the same time: they
    // are left the time to say whom they wait for, and rank 0 to write its log.
    if (termination_requested()) {
      std::this_thread::sleep_for(time_for_others_at_signal);
    } else {
      std::this_thread::sleep_for(time_for_others);
    }
    _exit(int(code));
  };
}

Watchdog::Watchdog(std::chrono::duration<double> timeout, Expire expire)
    : timeout_(timeout), expire_(std::move(expire)), queue_(1), head_since_(Clock::now()) {
  thread_ = std::thread([this] {
    while (!stop_) {
      poll();
      std::this_thread::sleep_for(poll_interval);
    }
  });
}

Watchdog::~Watchdog() {
  stop_ = true;
  thread_.join();
}

size_t Watchdog::add(const Event& end, std::string text) {
  const std::lock_guard lock(mutex_);
  device_ = current_device();
  items_.push_back({&end, std::move(text)});
  // At most two steps are in flight, and every item is submitted once per step.
  queue_.resize(2 * items_.size() + 1);
  return items_.size() - 1;
}

void Watchdog::drop_ended() {
  while (head_ != tail_ && items_[queue_[head_]].end->done()) {
    head_ = (head_ + 1) % queue_.size();
    head_since_ = Clock::now();
  }
}

void Watchdog::begin_step() {
  const std::lock_guard lock(mutex_);
  drop_ended();
}

void Watchdog::submitted(size_t number) {
  const std::lock_guard lock(mutex_);
  if (head_ == tail_) {
    head_since_ = Clock::now();
  }
  queue_[tail_] = number;
  tail_ = (tail_ + 1) % queue_.size();
  if (tail_ == head_) {
    throw InternalError("watchdog: more than two steps are in flight");
  }
}

void Watchdog::fail(const std::string& text) {
  const std::lock_guard lock(mutex_);
  phases_.insert(phases_.begin(), {text, Clock::now()});  // stays when those around it end
}

void Watchdog::clear() {
  const std::lock_guard lock(mutex_);
  items_.clear();
  head_ = tail_ = 0;
  error_probe_ = nullptr;
}

void Watchdog::set_error_probe(std::function<std::string()> probe) {
  const std::lock_guard lock(mutex_);
  error_probe_ = std::move(probe);
}

void Watchdog::set_awaited(std::function<int()> awaited) {
  const std::lock_guard lock(mutex_);
  awaited_ = std::move(awaited);
}

void Watchdog::set_recorder(std::function<void(const std::string&)> recorder) {
  const std::lock_guard lock(mutex_);
  recorder_ = std::move(recorder);
}

std::string Watchdog::pending_items() const {
  std::string text;
  size_t printed = 0;
  size_t left = 0;
  for (size_t i = head_; i != tail_; i = (i + 1) % queue_.size()) {
    const Item& item = items_[queue_[i]];
    if (item.end->done()) {
      continue;
    }
    if (printed == most_items_printed) {
      ++left;
      continue;
    }
    text += (printed == 0 ? "" : "; then ") + item.text;
    ++printed;
  }
  return left == 0 ? text : fmt::format("{}; and {} more", text, left);
}

std::string Watchdog::phase() const {
  const int rank = awaited_ ? awaited_() : -1;
  return phases_.back().first + (rank < 0 ? "" : fmt::format("; it waits for rank {}", rank));
}

void Watchdog::poll() {
  const std::lock_guard lock(mutex_);
  std::string reason;
  ExitCode code = ExitCode::lost;
  try {
    if (device_ >= 0 && current_device() != device_) {
      select_device(device_);  // on another one CUDA would make a context, of some hundred MiB
    }
    drop_ended();
    reason = verdict();
  } catch (const Error& error) {  // the device itself failed
    reason = error.what();
    code = error.code();
  }
  if (!reason.empty()) {
    if (recorder_) {
      record_within_time(recorder_, reason);
    }
    expire_(reason, code);
    stop_ = true;
  }
}

std::string Watchdog::verdict() const {
  const Clock::time_point now = Clock::now();
  std::string reason;
  if (termination_requested()) {
    reason = termination_signal == SIGINT ? "SIGINT: ended" : "SIGTERM: ended";
    if (!phases_.empty()) {
      reason += " while " + phase();
    } else if (head_ != tail_) {
      reason += "; not finished: " + pending_items();
    }
  } else if (error_probe_) {
    reason = error_probe_();
  }
  if (reason.empty() && head_ != tail_ && now - head_since_ > timeout_) {
    reason =
        fmt::format("no progress for {:g} s (--timeout): {}", timeout_.count(), pending_items());
  }
  if (reason.empty() && !phases_.empty() && now - phases_.back().second > timeout_) {
    reason = fmt::format("no progress for {:g} s (--timeout) while {}", timeout_.count(), phase());
  }
  return reason;
}

void Watchdog::progress() {
  const std::lock_guard lock(mutex_);
  for (auto& [text, since] : phases_) {
    since = Clock::now();
  }
}

Watchdog::HostPhase::HostPhase(Watchdog* watchdog, std::string text) : watchdog_(watchdog) {
  if (watchdog_ != nullptr) {
    const std::lock_guard lock(watchdog_->mutex_);
    watchdog_->phases_.emplace_back(std::move(text), Clock::now());
  }
}

Watchdog::HostPhase::~HostPhase() {
  if (watchdog_ != nullptr) {
    const std::lock_guard lock(watchdog_->mutex_);
    watchdog_->phases_.pop_back();
    for (auto& [text, since] : watchdog_->phases_) {  // those around it
      since = Clock::now();
    }
  }
}

SharedProgress::SharedProgress(Watchdog& watchdog, Control& control)
    : watchdog_(watchdog), control_(control), own_([&watchdog, &control] {
        watchdog.progress();
        control.tell_progress();
      }) {
  control_.on_progress([&watchdog] { watchdog.progress(); });
  watchdog_.set_awaited([&control] { return control.awaited(); });
}

SharedProgress::~SharedProgress() {
  watchdog_.set_awaited(nullptr);
  control_.on_progress(nullptr);
}

}  // namespace pipetrain
