#include "control_checks.h"

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::vector<std::byte> filled(size_t bytes, int value) {
  return std::vector<std::byte>(bytes, std::byte(value));
}

std::string check_broadcast(Control& control) {
  for (int root = 0; root < control.size(); ++root) {
    for (const size_t bytes : {size_t(0), size_t(1), size_t(300'001)}) {
      std::vector<std::byte> data =
          control.rank() == root ? filled(bytes, root + 1) : filled(7, 99);
      control.broadcast(data, root);
      if (data != filled(bytes, root + 1)) {
        return fmt::format("broadcast of {} bytes from rank {}", bytes, root);
      }
    }
  }
  const std::string text = control.rank() == 0 ? "a plan\nof two lines" : "";
  return control.broadcast(text, 0) == "a plan\nof two lines" ? "" : "broadcast of text";
}

// Every rank gives another size.
std::string check_gather(Control& control) {
  for (int root = 0; root < control.size(); ++root) {
    const auto gathered = control.gather(filled(size_t(10'000 * control.rank()), root), root);
    if (control.rank() != root) {
      if (!gathered.empty()) {
        return "gather gave something to a rank that is not the root";
      }
      continue;
    }
    if (gathered.size() != size_t(control.size())) {
      return fmt::format("gather gave {} entries", gathered.size());
    }
    for (size_t rank = 0; rank < gathered.size(); ++rank) {
      if (gathered[rank] != filled(10'000 * rank, root)) {
        return fmt::format("gather on rank {}: entry {}", root, rank);
      }
    }
  }
  return "";
}

// Around a ring, one rank after the other, in order, a gather in between.
std::string check_ring(Control& control) {
  const int next = (control.rank() + 1) % control.size();
  const int previous = (control.rank() + control.size() - 1) % control.size();
  if (control.size() == 1) {
    return "";
  }
  for (const size_t bytes : {size_t(0), size_t(5), size_t(200'000)}) {
    std::vector<std::byte> received;
    if (control.rank() != 0) {
      received = control.receive(previous);
    }
    control.send(filled(bytes, control.rank()), next);
    if (control.rank() == 0) {
      received = control.receive(previous);
    }
    if (received != filled(bytes, previous)) {
      return fmt::format("{} bytes around a ring", bytes);
    }
    control.gather(filled(3, 1), 0);
  }
  return "";
}

std::string check_equality(Control& control) {
  control.require_equal("same", "the schedule");
  if (control.size() == 1) {
    return "";
  }
  const bool odd = control.rank() == control.size() - 1;
  std::string message;
  try {
    control.require_equal(odd ? "m=8" : "m=4", "the number of micro-batches");
  } catch (const UsageError& error) {
    message = error.what();
  }
  for (const std::string& part : {std::string("the number of micro-batches"), std::string("m=4"),
                                  fmt::format("rank {} has 'm=8'", control.size() - 1)}) {
    if (message.find(part) == std::string::npos) {
      return fmt::format("require_equal: '{}' is not in '{}'", part, message);
    }
  }
  // The difference is shown, however much stands before and behind it.
  const std::string long_text(300, 'x');
  try {
    control.require_equal(fmt::format("--data {} --seed {} --steps {}\n{}", long_text, odd ? 7 : 1,
                                      long_text, long_text),
                          "the flags");
  } catch (const UsageError& error) {
    message = error.what();
  }
  for (const std::string part : {"rank 0 has '--seed 1' and", "has '--seed 7'"}) {
    if (message.find(part) == std::string::npos) {
      return fmt::format("require_equal: '{}' is not in '{}'", part, message);
    }
  }
  return "";
}

// The last rank works, the others wait for it and hear so.
std::string check_progress(Control& control) {
  int heard = 0;
  control.on_progress([&] { ++heard; });
  const bool works = control.rank() == control.size() - 1;
  const auto start = std::chrono::steady_clock::now();
  while (works && std::chrono::steady_clock::now() - start < std::chrono::milliseconds(400)) {
    control.tell_progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  control.barrier();
  control.on_progress(nullptr);
  return (heard > 0) == works && control.size() > 1
             ? fmt::format("rank {} heard {} times of progress", control.rank(), heard)
             : "";
}

std::string check_first_equal(Control& control) {
  const std::vector<int> first = control.first_equal(control.rank() % 2 == 0 ? "even" : "odd");
  bool right = int(first.size()) == control.size();
  for (int rank = 0; right && rank < control.size(); ++rank) {
    right = first[size_t(rank)] == rank % 2;
  }
  return right ? "" : "first_equal does not tell which ranks have the same";
}

std::string check_ranks(Control& control) {
  const bool right = control.rank() >= 0 && control.rank() < control.size() &&
                     control.local_rank() == control.rank() &&
                     control.local_size() == control.size();
  return right ? "" : "ranks on one host are not numbered as in the job";
}

}  // namespace

std::string check_control(Control& control) {
  for (const auto check : {check_ranks, check_broadcast, check_gather, check_ring, check_equality,
                           check_first_equal, check_progress}) {
    const std::string problem = check(control);
    control.barrier();
    if (!problem.empty()) {
      return problem;
    }
  }
  return "";
}

}  // namespace pipetrain
