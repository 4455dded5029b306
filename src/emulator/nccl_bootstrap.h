#pragma once

#include <nccl.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// How ranks find each other: abstract Unix sockets, and a secret in the unique id that every
// connection must show first.
namespace emulator::nccl {

class Failure : public std::runtime_error {
 public:
  Failure(ncclResult_t result, const std::string& text)
      : std::runtime_error(text), result_(result) {}
  ncclResult_t result() const { return result_; }

 private:
  ncclResult_t result_;
};

// ---- sockets
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();
  int fd() const { return fd_; }

  // Blocking; false when the other side has gone.
  bool read_all(void* data, size_t bytes) const;
  bool write_all(const void* data, size_t bytes) const;

 private:
  int fd_ = -1;
};

// What a connection is for, as the one who connects sees it; sent first, with the secret.
enum class Purpose : uint32_t { bootstrap, notes, to_send, to_receive };
struct Greeting {
  unsigned char secret[16] = {};
  Purpose purpose = Purpose::bootstrap;
  int32_t rank = 0;  // of the one that connects
};

class Listener {
 public:
  Listener();  // on a fresh random address
  const std::string& address() const { return address_; }
  // The next connection that shows the secret. Others are closed, also when they stay silent.
  Socket accept(const unsigned char (&secret)[16], Greeting& greeting) const;

 private:
  Socket socket_;
  std::string address_;
};
Socket connect_to(const std::string& address, const Greeting& greeting);

// ---- unique ids
struct IdContents {
  char magic[16];
  unsigned char secret[16];
  unsigned char host[16];
  char address[64];
};
static_assert(sizeof(IdContents) <= NCCL_UNIQUE_ID_BYTES);
// Throws Failure for an id that was not made by ncclGetUniqueId, or on another host.
IdContents contents_of(const ncclUniqueId& id);
// Makes an id and, on a thread of its own, serves the ranks that will join with it.
ncclUniqueId make_unique_id();

// ---- joining
// A rank as the others see it.
struct Member {
  unsigned char process[16];  // equal for the threads of one process
  int32_t device = 0;
  char address[64];  // where the rank accepts its peers
};
constexpr int most_ranks = 4096;

bool same_process(const Member& a, const Member& b);
// Blocks until all ranks have joined; returns them in rank order.
std::vector<Member> join(const ncclUniqueId& id, int ranks, int rank, int device,
                         const Listener& listener);

}  // namespace emulator::nccl
