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
#include "pipetrain/progress.h"

// The only file that calls MPI. Every wait polls and sleeps: MPI's own blocking calls burn a core.
namespace pipetrain {
namespace {

constexpr size_t piece_bytes = size_t(1) << 26;  // counts are int in MPI; each is progress
constexpr std::chrono::microseconds shortest_sleep{20};
constexpr std::chrono::microseconds longest_sleep{1000};
constexpr std::chrono::microseconds longest_sleep_in_transfer{100};

constexpr int tag = 0;  // MPI keeps the order between two ranks
constexpr int progress_tag = 1;

// Every rank may tell every other one: the larger the job, the more seldom.
std::chrono::milliseconds progress_interval(int ranks) {
  return std::chrono::milliseconds(100 + ranks);
}

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

// Calls transfer(pointer, bytes) for each piece of `data`. Large data is long work.
template <typename Byte, typename Transfer>
void in_pieces(std::span<Byte> data, const Transfer& transfer) {
  while (!data.empty()) {
    const size_t bytes = std::min(data.size(), piece_bytes);
    transfer(data.data(), int(bytes));
    data = data.subspan(bytes);
    if (!data.empty()) {
      report_progress();
    }
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
    told_.assign(size_t(size_), {});
  }

  // Ranks come here at different times; the barrier lets the early ones sleep.
  ~MpiControl() override {
    if (std::uncaught_exceptions() != 0) {
      return;
    }
    try {
      on_progress(nullptr);
      barrier();
      receive_all_progress();
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

  void broadcast(std::vector<std::byte>& data, int root) override {
    const Wait waits(*this, rank_ == root ? -1 : root);
    uint64_t bytes = data.size();
    broadcast_piece(&bytes, sizeof(bytes), root, longest_sleep);
    data.resize(bytes);
    in_pieces(std::span(data), [&](void* piece, int count) {
      broadcast_piece(piece, count, root, longest_sleep_in_transfer);
    });
  }

  // A message is its size and then its bytes in pieces.
  void send(std::span<const std::byte> data, int destination) override {
    const Wait waits(*this, destination);
    const uint64_t bytes = data.size();
    send_piece(&bytes, sizeof(bytes), destination, longest_sleep);
    in_pieces(data, [&](const void* piece, int count) {
      send_piece(piece, count, destination, longest_sleep_in_transfer);
    });
  }

  std::vector<std::byte> receive(int source) override {
    const Wait waits(*this, source);
    uint64_t bytes = 0;
    receive_piece(&bytes, sizeof(bytes), source, longest_sleep);
    std::vector<std::byte> data(bytes);
    in_pieces(std::span(data), [&](void* piece, int count) {
      receive_piece(piece, count, source, longest_sleep_in_transfer);
    });
    return data;
  }

  // A message without content to each of the others, which must first have taken the one before.
  void tell_progress() override {
    const auto now = std::chrono::steady_clock::now();
    if (size_ == 1 || now - last_told_ < progress_interval(size_)) {
      return;
    }
    last_told_ = now;
    for (int peer = 0; peer < size_; ++peer) {
      Told& told = told_[size_t(peer)];
      if (peer != rank_ && ended(told.request)) {
        check_mpi(MPI_Isend(nullptr, 0, MPI_BYTE, peer, progress_tag, world_, &told.request),
                  "MPI_Isend");
        ++told.sent;
      }
    }
  }

 private:
  // Of a rank: how often it was told of progress, and told of its own.
  struct Told {
    MPI_Request request = MPI_REQUEST_NULL;
    int64_t sent = 0;
    int64_t received = 0;
  };

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

  void wait(MPI_Request& request, std::chrono::microseconds longest) {
    auto sleep = shortest_sleep;
    while (!ended(request)) {
      receive_progress();
      std::this_thread::sleep_for(sleep);
      sleep = std::min(sleep * 2, longest);
    }
  }

  void receive_progress_from(int source) {
    check_mpi(MPI_Recv(nullptr, 0, MPI_BYTE, source, progress_tag, world_, MPI_STATUS_IGNORE),
              "MPI_Recv");
    ++told_[size_t(source)].received;
  }

  // What has arrived.
  void receive_progress() {
    bool any = false;
    for (int found = 1; found != 0;) {
      MPI_Status status;
      check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, progress_tag, world_, &found, &status), "MPI_Iprobe");
      if (found != 0) {
        receive_progress_from(status.MPI_SOURCE);
        any = true;
      }
    }
    if (any) {
      hear_progress();
    }
  }

  // MPI may end only when all that was sent is received.
  void receive_all_progress() {
    std::vector<int64_t> sent;
    for (const Told& told : told_) {
      sent.push_back(told.sent);
    }
    std::vector<int64_t> due(sent.size());
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(
        MPI_Ialltoall(sent.data(), 1, MPI_INT64_T, due.data(), 1, MPI_INT64_T, world_, &request),
        "MPI_Ialltoall");
    wait(request, longest_sleep);
    for (int peer = 0; peer < size_; ++peer) {
      while (told_[size_t(peer)].received < due[size_t(peer)]) {
        receive_progress_from(peer);
      }
    }
    for (Told& told : told_) {
      wait(told.request, longest_sleep);
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
  std::vector<Told> told_;  // by rank
  std::chrono::steady_clock::time_point last_told_;
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
