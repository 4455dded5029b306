// One rank of an MPI job; started by mpirun, see tests/CMakeLists.txt. Exits with 0 if all is well.
//   all           every operation of the control, then a ring of NCCL channels between processes
//   large         a message and a broadcast that take several MPI messages
//   fail CODE     rank 1 ends the job while the others wait
//   throw CODE    rank 1 throws while the others wait, and ends the job after unwinding
//   alone         expects to be refused as one of several jobs of one rank

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "../control_checks.h"
#include "../ring.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/comm/environment.h"
#include "pipetrain/device/info.h"
#include "pipetrain/error.h"

namespace pipetrain {
namespace {

std::string check_all() {
  const auto control = make_mpi_control();
  const std::string problem = check_control(*control);
  if (!problem.empty() || control->size() == 1) {
    return problem;
  }
  if (control->local_size() > device_count()) {
    let_ranks_share_gpus(control->rank(), true);
  }
  select_device(control->local_rank() % device_count());
  return check_ring_of_channels(*control, {.bytes = (1 << 20) + 1, .messages = 3});
}

std::string check_large() {
  constexpr size_t bytes = (size_t(1) << 31) + 5;  // more than an int counts
  const auto control = make_mpi_control();
  std::vector<std::byte> data;
  if (control->rank() == 0) {
    data.assign(bytes, std::byte(3));
    data.back() = std::byte(4);
    control->send(data, 1);
  } else {
    data = control->receive(0);
  }
  control->broadcast(data, 1);
  return data.size() == bytes && data.front() == std::byte(3) && data.back() == std::byte(4)
             ? ""
             : "a large message";
}

void fail(int code) {
  const auto control = make_mpi_control();
  if (control->rank() == 1) {
    end_job(code);
  }
  control->barrier();
}

void throw_while_others_wait() {
  const auto control = make_mpi_control();
  if (control->rank() == 1) {
    throw std::runtime_error("rank 1 fails");
  }
  control->barrier();
}

int run(const std::vector<std::string>& arguments) {
  const std::string mode = arguments.empty() ? "" : arguments[0];
  std::string problem;
  if (mode == "all") {
    problem = check_all();
  } else if (mode == "large") {
    problem = check_large();
  } else if (mode == "fail") {
    fail(std::stoi(arguments.at(1)));
  } else if (mode == "throw") {
    try {
      throw_while_others_wait();
    } catch (const std::runtime_error&) {
      end_job(std::stoi(arguments.at(1)));
    }
  } else if (mode == "alone") {
    const auto control = make_mpi_control();
    problem = "one of several jobs of one rank was not refused";
  } else {
    problem = "unknown mode '" + mode + "'";
  }
  if (!problem.empty()) {
    std::fprintf(stderr, "%s\n", problem.c_str());
    end_job(1);
  }
  return 0;
}

}  // namespace
}  // namespace pipetrain

int main(int argc, char** argv) {
  pipetrain::set_environment();
  try {
    return pipetrain::run({argv + 1, argv + argc});
  } catch (const pipetrain::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    pipetrain::end_job(int(error.code()));
  }
}
