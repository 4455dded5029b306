#include "cli/random_tokens.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "pipetrain/error.h"
#include "pipetrain/progress.h"

namespace pipetrain {
namespace {

// llm.c's header: 256 integers, of which the first three are used.
constexpr size_t header_bytes = 1024;
constexpr int32_t shard_magic = 20240520;
constexpr int32_t shard_version = 1;

std::vector<char> shard(size_t tokens, int vocabulary) {
  std::vector<char> bytes(header_bytes + 2 * tokens);
  const int32_t header[3] = {shard_magic, shard_version, int32_t(uint32_t(tokens))};
  std::memcpy(bytes.data(), header, sizeof(header));
  const uint32_t below = uint32_t(std::clamp(vocabulary, 1, 1 << 16));
  std::minstd_rand random(1);
  for (size_t i = 0; i < tokens; ++i) {
    const auto token = uint16_t(random() % below);
    std::memcpy(bytes.data() + header_bytes + 2 * i, &token, sizeof(token));
    if (i % (1 << 20) == 0) {
      report_progress();
    }
  }
  return bytes;
}

}  // namespace

RandomTokens::RandomTokens(size_t tokens, int vocabulary)
    : file_(memfd_create("random-tokens", MFD_CLOEXEC)) {
  const std::vector<char> bytes = shard(tokens, vocabulary);
  size_t written = 0;
  while (file_ >= 0 && written < bytes.size()) {
    const ssize_t put = write(file_, bytes.data() + written, bytes.size() - written);
    if (put < 0 && errno != EINTR) {
      break;
    }
    written += size_t(std::max<ssize_t>(put, 0));
  }
  if (written < bytes.size()) {
    const int error = errno;
    if (file_ >= 0) {
      close(file_);
    }
    throw Error(ExitCode::other,
                fmt::format("no memory for {} random tokens: {}; give files with --data", tokens,
                            std::strerror(error)));
  }
}

RandomTokens::~RandomTokens() {
  close(file_);
}

std::string RandomTokens::path() const {
  return fmt::format("/proc/self/fd/{}", file_);
}

}  // namespace pipetrain
