// How ranks find each other: the maker of a unique id serves it on a thread, every rank tells it
// who it is and gets the list of all ranks.

#include "emulator/nccl_bootstrap.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <thread>

namespace emulator::nccl {
namespace {

constexpr char id_magic[16] = "pipetrain-id-1";
constexpr int greeting_seconds = 10;
constexpr int backlog = 4096;

[[noreturn]] void fail_with_errno(const char* call) {
  throw Failure(ncclSystemError, fmt::format("{}: {}", call, std::strerror(errno)));
}

void fill_random(void* data, size_t bytes) {
  if (getrandom(data, bytes, 0) != ssize_t(bytes)) {
    fail_with_errno("getrandom");
  }
}

// Abstract names (a leading zero byte) need no file and vanish with the socket.
socklen_t abstract_address(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + length);
}

Socket new_socket() {
  Socket socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.fd() < 0) {
    fail_with_errno("socket");
  }
  return socket;
}

void set_read_timeout(const Socket& socket, int seconds) {
  const timeval time{seconds, 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
}

// Equal for all processes that can reach each other by abstract sockets: the machine's boot and the
// network namespace.
void host_identity(unsigned char (&identity)[16]) {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char link[64] = {};
  const ssize_t length = readlink("/proc/self/ns/net", link, sizeof link - 1);
  boot.append(link, length > 0 ? size_t(length) : 0);
  uint64_t hashes[2] = {14695981039346656037u, 0x9e3779b97f4a7c15u};
  for (const char c : boot) {
    for (uint64_t& hash : hashes) {
      hash = (hash ^ uint64_t(static_cast<unsigned char>(c))) * 1099511628211u;
    }
  }
  std::memcpy(identity, hashes, sizeof identity);
}

void process_identity(unsigned char (&identity)[16]) {
  static const uint64_t random = [] {
    uint64_t value = 0;
    fill_random(&value, sizeof value);
    return value;
  }();
  const uint64_t words[2] = {random, uint64_t(getpid())};  // a forked child differs
  std::memcpy(identity, words, sizeof identity);
}

// ---- what a rank and the server say to each other
struct Hello {
  int32_t ranks = 0;
  Member member{};
};
struct Answer {
  int32_t result = ncclSuccess;
  char text[124] = {};
};

void serve(const Listener& listener, const IdContents& id) {
  std::vector<Socket> sockets;
  std::vector<Member> members;
  Answer answer;
  int ranks = 0;
  for (int joined = 0; ranks == 0 || joined < ranks; ++joined) {
    Greeting greeting;
    Hello hello;
    Socket socket = listener.accept(id.secret, greeting);
    if (greeting.purpose != Purpose::bootstrap || !socket.read_all(&hello, sizeof hello)) {
      --joined;
      continue;
    }
    if (ranks == 0 && hello.ranks > 0 && hello.ranks <= most_ranks) {
      ranks = hello.ranks;
      sockets.resize(size_t(ranks));
      members.resize(size_t(ranks));
    }
    std::string error;
    if (hello.ranks != ranks) {
      error =
          fmt::format("rank {} says {} ranks, others say {}", greeting.rank, hello.ranks, ranks);
    } else if (greeting.rank < 0 || greeting.rank >= ranks) {
      error = fmt::format("rank {} of {} ranks", greeting.rank, ranks);
    } else if (sockets[size_t(greeting.rank)].fd() >= 0) {
      error = fmt::format("two ranks say that they are rank {}", greeting.rank);
    }
    if (!error.empty()) {
      answer.result = ncclInvalidUsage;
      error.copy(answer.text, sizeof answer.text - 1);
      socket.write_all(&answer, sizeof answer);
      break;
    }
    sockets[size_t(greeting.rank)] = std::move(socket);
    members[size_t(greeting.rank)] = hello.member;
  }
  for (const Socket& socket : sockets) {
    if (socket.fd() >= 0 && socket.write_all(&answer, sizeof answer) &&
        answer.result == ncclSuccess) {
      socket.write_all(members.data(), members.size() * sizeof(Member));
    }
  }
}

}  // namespace

// ---- sockets
Socket::~Socket() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

bool Socket::read_all(void* data, size_t bytes) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd_, at, bytes, 0);
    if (got > 0) {
      at += got;
      bytes -= size_t(got);
    } else if (got == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

bool Socket::write_all(const void* data, size_t bytes) const {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = send(fd_, at, bytes, MSG_NOSIGNAL);
    if (put > 0) {
      at += put;
      bytes -= size_t(put);
    } else if (put == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

Listener::Listener() : socket_(new_socket()) {
  uint64_t number = 0;
  fill_random(&number, sizeof number);
  address_ = fmt::format("pipetrain-nccl-{}-{:016x}", getpid(), number);
  sockaddr_un address;
  const socklen_t length = abstract_address(address_, address);
  if (bind(socket_.fd(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(socket_.fd(), backlog) != 0) {
    fail_with_errno("bind of a Unix socket");
  }
}

Socket Listener::accept(const unsigned char (&secret)[16], Greeting& greeting) const {
  for (;;) {
    Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
    if (socket.fd() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      fail_with_errno("accept");
    }
    set_read_timeout(socket, greeting_seconds);
    if (socket.read_all(&greeting, sizeof greeting) &&
        std::memcmp(greeting.secret, secret, sizeof secret) == 0) {
      set_read_timeout(socket, 0);
      return socket;
    }
  }
}

Socket connect_to(const std::string& address, const Greeting& greeting) {
  Socket socket = new_socket();
  sockaddr_un name;
  const socklen_t length = abstract_address(address, name);
  int result = 0;
  do {
    result = connect(socket.fd(), reinterpret_cast<const sockaddr*>(&name), length);
  } while (result != 0 && errno == EINTR);
  if (result != 0 || !socket.write_all(&greeting, sizeof greeting)) {
    throw Failure(ncclRemoteError,
                  fmt::format("cannot connect to {}: {} (is that process still running, and was "
                              "each unique id used for one communicator only?)",
                              address, std::strerror(errno)));
  }
  return socket;
}

// ---- unique ids
IdContents contents_of(const ncclUniqueId& id) {
  IdContents contents;
  std::memcpy(&contents, id.internal, sizeof contents);
  if (std::memcmp(contents.magic, id_magic, sizeof id_magic) != 0 ||
      std::memchr(contents.address, 0, sizeof contents.address) == nullptr) {
    throw Failure(ncclInvalidArgument, "the unique id is not one that ncclGetUniqueId made");
  }
  unsigned char host[16];
  host_identity(host);
  if (std::memcmp(host, contents.host, sizeof host) != 0) {
    throw Failure(ncclInvalidUsage,
                  "the unique id was made on another host (or in another network namespace); the "
                  "emulator connects ranks of one host only");
  }
  return contents;
}

ncclUniqueId make_unique_id() {
  IdContents contents{};
  std::memcpy(contents.magic, id_magic, sizeof id_magic);
  fill_random(contents.secret, sizeof contents.secret);
  host_identity(contents.host);
  Listener listener;
  listener.address().copy(contents.address, sizeof contents.address - 1);
  std::thread([contents, listener = std::move(listener)] {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    try {
      serve(listener, contents);
    } catch (const std::exception&) {
      // The ranks see their connections closed and report it.
    }
  }).detach();
  ncclUniqueId id{};
  std::memcpy(id.internal, &contents, sizeof contents);
  return id;
}

// ---- joining
bool same_process(const Member& a, const Member& b) {
  return std::memcmp(a.process, b.process, sizeof a.process) == 0;
}

std::vector<Member> join(const ncclUniqueId& id, int ranks, int rank, int device,
                         const Listener& listener) {
  const IdContents contents = contents_of(id);
  Hello hello;
  hello.ranks = ranks;
  hello.member.device = device;
  process_identity(hello.member.process);
  listener.address().copy(hello.member.address, sizeof hello.member.address - 1);
  Greeting greeting;
  std::memcpy(greeting.secret, contents.secret, sizeof greeting.secret);
  greeting.rank = rank;
  const Socket server = connect_to(contents.address, greeting);
  Answer answer;
  std::vector<Member> members(static_cast<size_t>(ranks));
  if (!server.write_all(&hello, sizeof hello) || !server.read_all(&answer, sizeof answer) ||
      (answer.result == ncclSuccess &&
       !server.read_all(members.data(), members.size() * sizeof(Member)))) {
    throw Failure(ncclRemoteError, "the process that made the unique id has gone");
  }
  if (answer.result != ncclSuccess) {
    answer.text[sizeof answer.text - 1] = 0;
    throw Failure(ncclResult_t(answer.result), answer.text);
  }
  for (int i = 0; i < ranks; ++i) {
    members[size_t(i)].address[sizeof members[size_t(i)].address - 1] = 0;
    for (int j = 0; j < i; ++j) {
      if (same_process(members[size_t(i)], members[size_t(j)]) &&
          members[size_t(i)].device == members[size_t(j)].device) {
        throw Failure(ncclInvalidUsage,
                      fmt::format("Duplicate GPU detected: rank {} and rank {} both on device {} "
                                  "of one process",
                                  j, i, members[size_t(i)].device));
      }
    }
  }
  return members;
}

}  // namespace emulator::nccl
