#include <fmt/format.h>
#include <nccl.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "cli/command.h"
#include "pipetrain/comm/control.h"
#include "pipetrain/device/info.h"

namespace pipetrain {
namespace {

#ifdef PIPETRAIN_HOST
constexpr bool emulated = true;
#else
constexpr bool emulated = false;
#endif

constexpr double gib = 1024.0 * 1024.0 * 1024.0;

void line(const std::string& what, const std::string& value) {
  fmt::print("{:<22} {}\n", what, value);
}

void advise(const std::string& text) {
  fmt::print("{:<22} -> {}\n", "", text);
}

bool on_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  const std::string all = path == nullptr ? "" : path;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find(':', begin), all.size());
    if (access((all.substr(begin, end - begin) + "/" + program).c_str(), X_OK) == 0) {
      return true;
    }
    begin = end + 1;
  }
  return false;
}

std::string cuda_version(int version) {
  return version == 0 ? "none" : fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess
             ? fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100)
             : "unknown";
}

void report_machine() {
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGE_SIZE));
  line("CPU cores", std::to_string(std::thread::hardware_concurrency()));
  line("memory", fmt::format("{:.1f} GiB", memory / gib));
  line("MPI", mpi_library_version());
  line("mpirun", on_path("mpirun") ? "found" : "not found");
  if (!on_path("mpirun")) {
    advise("several ranks need it: apt-get install openmpi-bin");
  }
}

// Whether each pair of GPUs can reach the other's memory without the host.
void report_links([[maybe_unused]] int devices) {
#ifdef PIPETRAIN_CUDA
  for (int a = 0; a < devices; ++a) {
    for (int b = a + 1; b < devices; ++b) {
      int access_possible = 0;
      if (cudaDeviceCanAccessPeer(&access_possible, a, b) == cudaSuccess) {
        line(fmt::format("link {} - {}", a, b),
             access_possible != 0 ? "peer to peer (NVLink or PCIe)" : "through the host");
      }
    }
  }
#endif
}

void report_devices() {
  const int devices = device_count();
  line("CUDA driver", cuda_version(cuda_driver_version()));
  line("CUDA runtime", cuda_version(cuda_runtime_version()));
  line("NCCL", nccl_version());
  if (devices == 0) {
    line("GPUs", "none: " + device_problem());
    advise("install NVIDIA's driver, or build the host flavour: cmake --preset host");
  }
  for (int device = 0; device < devices; ++device) {
    const DeviceInfo info = device_info(device);
    line(fmt::format("GPU {}", device),
         fmt::format("{}, {:.0f} GiB, {} multiprocessors, compute capability {}.{}, bus {}",
                     info.name, double(info.memory) / gib, info.multiprocessors, info.major,
                     info.minor, info.bus_id));
  }
  report_links(devices);
}

void report_emulation() {
  line("device", "host: CUDA, cuBLASLt and NCCL are emulated on the CPU");
  const char* core_type = std::getenv("OPENBLAS_CORETYPE");
  line("BLAS", core_type == nullptr ? "OpenBLAS" : fmt::format("OpenBLAS for {}", core_type));
  if (core_type != nullptr) {
    advise("OPENBLAS_CORETYPE is set; unset it for OpenBLAS's own choice, which may be faster");
  }
  if (access("/dev/nvidiactl", F_OK) == 0) {
    advise("this machine has an NVIDIA GPU: build the cuda flavour with cmake --preset cuda");
  } else if (!on_path("nvcc") && access("/usr/local/cuda/bin/nvcc", X_OK) != 0) {
    line("nvcc", "not found");
    advise(
        "the cuda flavour needs the CUDA toolkit (12.3 or newer) and libnccl-dev (2.19 or newer)");
  }
}

int doctor() {
  line("pipetrain", fmt::format("{} ({} flavour)", PIPETRAIN_VERSION, PIPETRAIN_FLAVOUR));
  report_machine();
  if (emulated) {
    report_emulation();
  } else {
    report_devices();
  }
  return 0;
}

}  // namespace

Command add_doctor(CLI::App& main) {
  CLI::App* app = main.add_subcommand(
      "doctor", "Shows what this machine offers, what is missing and how to get it");
  return {app, doctor};
}

}  // namespace pipetrain
