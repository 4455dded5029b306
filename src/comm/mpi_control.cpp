#include <fmt/format.h>

#define OMPI_SKIP_MPICXX 1  // mpi.h without the C++ bindings, which MPI 3 removed
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <thread>

#include "pipetrain/comm/control.h"
#include "pipetrain/comm/environment.h"
#include "pipetrain/error.h"

// The only file that calls MPI. Every wait polls and sleeps: MPI's own blocking calls burn a core.
namespace pipetrain {
namespace {

constexpr size_t piece_bytes = size_t(1) << 30;  // counts are int in MPI
constexpr std::chrono::microseconds shortest_sleep{20};
constexpr std::chrono::microseconds longest_sleep{1000};
constexpr std::chrono::microseconds longest_sleep_in_transfer{100};

constexpr int tag = 0;  // MPI keeps the order between two ranks

void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  throw InternalError(fmt::format("{}: {}", call, std::string(text, size_t(length))));
}

// A large message moves on by a piece of some 10 KiB in every test, so several are made at a time.
bool ended(MPI_Request& request) {
  constexpr int tests = 32;
  int done = 0;
  for (int i = 0; i < tests && done == 0; ++i) {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
  }
  return done != 0;
}

void wait(MPI_Request& request, std::chrono::microseconds longest) {
  auto sleep = shortest_sleep;
  while (!ended(request)) {
    std::this_thread::sleep_for(sleep);
    sleep = std::min(sleep * 2, longest);
  }
}

// Calls transfer(pointer, bytes) for each piece of `data`.
template <typename Byte, typename Transfer>
void in_pieces(std::span<Byte> data, const Transfer& transfer) {
  while (!data.empty()) {
    const size_t bytes = std::min(data.size(), piece_bytes);
    transfer(data.data(), int(bytes));
    data = data.subspan(bytes);
  }
}

class MpiControl final : public Control {
 public:
  MpiControl() {
    int initialized = 0;
    check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
    if (initialized == 0) {
      initialize();
    }
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world_), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(world_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(world_, &rank_), "MPI_Comm_rank");
    MPI_Comm host = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split_type(world_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &host),
              "MPI_Comm_split_type");
    check_mpi(MPI_Comm_rank(host, &local_rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(host, &local_size_), "MPI_Comm_size");
    check_mpi(MPI_Comm_free(&host), "MPI_Comm_free");
    check_mpi(MPI_Comm_size(world_, &size_), "MPI_Comm_size");
  }

  // Ranks come here at different times; the barrier lets the early ones sleep.
  ~MpiControl() override {
    if (std::uncaught_exceptions() != 0) {
      return;
    }
    try {
      barrier();
      check_mpi(MPI_Comm_free(&world_), "MPI_Comm_free");
      if (finalize_) {
        check_mpi(MPI_Finalize(), "MPI_Finalize");
      }
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return local_rank_; }
  int local_size() const override { return local_size_; }

  void barrier() override {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibarrier(world_, &request), "MPI_Ibarrier");
    wait(request, longest_sleep);
  }

  void broadcast(std::vector<std::byte>& data, int root) override {
    uint64_t bytes = data.size();
    broadcast_piece(&bytes, sizeof(bytes), root, longest_sleep);
    data.resize(bytes);
    in_pieces(std::span(data), [&](void* piece, int count) {
      broadcast_piece(piece, count, root, longest_sleep_in_transfer);
    });
  }

  // A message is its size and then its bytes in pieces.
  void send(std::span<const std::byte> data, int destination) override {
    const uint64_t bytes = data.size();
    send_piece(&bytes, sizeof(bytes), destination, longest_sleep);
    in_pieces(data, [&](const void* piece, int count) {
      send_piece(piece, count, destination, longest_sleep_in_transfer);
    });
  }

  std::vector<std::byte> receive(int source) override {
    uint64_t bytes = 0;
    receive_piece(&bytes, sizeof(bytes), source, longest_sleep);
    std::vector<std::byte> data(bytes);
    in_pieces(std::span(data), [&](void* piece, int count) {
      receive_piece(piece, count, source, longest_sleep_in_transfer);
    });
    return data;
  }

 private:
  void initialize() {
    int provided = 0;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided),
              "MPI_Init_thread");
    finalize_ = true;
    int ranks = 0;
    check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &ranks), "MPI_Comm_size");
    try {
      refuse_jobs_of_one_rank(ranks);
    } catch (...) {
      MPI_Finalize();  // alone in its job, it waits for nobody
      throw;
    }
    if (provided < MPI_THREAD_SERIALIZED) {
      throw UsageError("this MPI library does not offer MPI_THREAD_SERIALIZED, which is needed");
    }
  }

  void broadcast_piece(void* piece, int bytes, int root, std::chrono::microseconds longest) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Ibcast(piece, bytes, MPI_BYTE, root, world_, &request), "MPI_Ibcast");
    wait(request, longest);
  }

  void send_piece(const void* piece, int bytes, int destination,
                  std::chrono::microseconds longest) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Isend(piece, bytes, MPI_BYTE, destination, tag, world_, &request), "MPI_Isend");
    wait(request, longest);
  }

  void receive_piece(void* piece, int bytes, int source, std::chrono::microseconds longest) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(piece, bytes, MPI_BYTE, source, tag, world_, &request), "MPI_Irecv");
    wait(request, longest);
  }

  MPI_Comm world_ = MPI_COMM_NULL;
  bool finalize_ = false;
  int rank_ = 0;
  int size_ = 1;
  int local_rank_ = 0;
  int local_size_ = 1;
};

}  // namespace

std::unique_ptr<Control> make_mpi_control() {
  return std::make_unique<MpiControl>();
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  const std::string version(text, size_t(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace pipetrain
