#include "pipetrain/train/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "pipetrain/error.h"
#include "pipetrain/progress.h"
#include "train/mapped_file.h"

namespace pipetrain {
namespace {

constexpr size_t header_bytes = 1024;
constexpr int32_t shard_magic = 20240520;
constexpr int32_t wide_shard_magic = 20240801;  // llm.c's shards of 32-bit tokens

struct Header {
  int32_t magic = 0;
  int32_t version = 0;
  int32_t tokens = 0;
};

// True for a token shard, false for any other file; throws for a shard that is not whole, and for
// one that would otherwise be taken for plain bytes by mistake.
bool is_shard(const MappedFile& file, const std::string& flag) {
  const size_t size = file.bytes().size();
  Header header;
  if (size >= sizeof(header)) {
    std::memcpy(&header, file.bytes().data(), sizeof(header));
  }
  const auto fail = [&](const std::string& what) {
    throw UsageError(fmt::format("{} {}: {}", flag, file.path(), what));
  };
  if (header.magic == wide_shard_magic) {
    fail("is a shard of 32-bit tokens; shards of 16-bit tokens are read");
  }
  if (header.magic != shard_magic) {
    if (header.version == 1 && header.tokens > 0 &&
        size == header_bytes + 2 * size_t(header.tokens)) {
      fail(fmt::format("has the form of a token shard, but its first number is {} instead of {}",
                       header.magic, shard_magic));
    }
    return false;
  }
  if (header.version != 1) {
    fail(fmt::format("is a token shard of version {}; version 1 is read", header.version));
  }
  // The count is read as unsigned: a shard over 2 GiB may hold more than 2^31 tokens.
  const size_t tokens = uint32_t(header.tokens);
  const size_t needed = header_bytes + 2 * tokens;
  if (size != needed) {
    fail(fmt::format("holds {} bytes, but its header says {} tokens, which is {} bytes", size,
                     tokens, needed));
  }
  return true;
}

// SplitMix64's finaliser (Steele et al. 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// A permutation of 0 .. size-1 that needs no memory: a Feistel network over the next even number of
// bits, walked until it lands inside (Black and Rogaway 2002).
size_t permuted(size_t index, size_t size, uint64_t key) {
  int half_bits = 1;
  while ((size - 1) >> (2 * half_bits) != 0) {
    ++half_bits;
  }
  const uint64_t mask = (uint64_t(1) << half_bits) - 1;
  uint64_t value = index;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 6; ++round) {
      const uint64_t next = left ^ (mix(key ^ mix((round << 56) ^ right)) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= size);
  return size_t(value);
}

}  // namespace

// ---- the stream

struct TokenStream::File {
  MappedFile file;
  bool shard = false;
  size_t first = 0;  // position of its first token in the stream
  size_t tokens = 0;

  int token(size_t i) const {
    if (!shard) {
      return std::to_integer<int>(file.bytes()[i]);
    }
    uint16_t value = 0;
    std::memcpy(&value, file.bytes().data() + header_bytes + 2 * i, sizeof(value));
    return value;
  }
};

TokenStream::TokenStream(std::vector<std::string> files, const std::string& flag) : flag_(flag) {
  if (files.empty()) {
    throw UsageError(fmt::format("{}: at least one file is needed", flag));
  }
  std::sort(files.begin(), files.end());
  size_t first = 0;
  for (const std::string& path : files) {
    MappedFile file(path, flag);
    const bool shard = is_shard(file, flag);
    const size_t size = file.bytes().size();
    const size_t tokens = shard ? (size - header_bytes) / 2 : size;
    files_.push_back({std::move(file), shard, first, tokens});
    first += tokens;
    if (shard != files_.front().shard) {
      throw UsageError(fmt::format("{}: {} is {} and {} is {}; all files must be of one kind", flag,
                                   files_.front().file.path(),
                                   files_.front().shard ? "a token shard" : "no token shard", path,
                                   shard ? "a token shard" : "no token shard"));
    }
  }
}

TokenStream::~TokenStream() = default;
TokenStream::TokenStream(TokenStream&&) noexcept = default;

size_t TokenStream::size() const {
  return files_.back().first + files_.back().tokens;
}
std::string TokenStream::content() const {
  constexpr size_t blocks = 1024;
  uint64_t sum = 0;
  for (const File& file : files_) {
    sum = mix(sum ^ file.file.checksum(std::max<size_t>(blocks / files_.size(), 2)));
  }
  return fmt::format("{} tokens, checksum {:016x}", size(), sum);
}
bool TokenStream::shards() const {
  return files_.front().shard;
}

void TokenStream::check_vocabulary(int vocabulary, int rank, int ranks, size_t common) const {
  if (vocabulary > (shards() ? UINT16_MAX : UINT8_MAX)) {
    return;
  }
  std::vector<int> tokens(size_t(1) << 16);
  const auto check = [&](size_t begin, size_t end) {
    for (size_t first = begin; first < end; first += tokens.size()) {
      read(first, std::min(tokens.size(), end - first), vocabulary, tokens.data());
      report_progress();
    }
  };
  const size_t alike = std::min(size(), common);
  check(0, alike);
  const size_t share = (size() - alike + size_t(ranks) - 1) / size_t(ranks);
  const size_t begin = std::min(alike + size_t(rank) * share, size());
  check(begin, std::min(begin + share, size()));
}

void TokenStream::read(size_t first, size_t count, int vocabulary, int* tokens) const {
  auto file = std::upper_bound(files_.begin(), files_.end(), first,
                               [](size_t value, const File& f) { return value < f.first; });
  --file;
  size_t done = 0;
  for (; done < count; ++file) {
    const size_t offset = first + done - file->first;
    const size_t here = std::min(count - done, file->tokens - offset);
    int largest = 0;
    for (size_t i = 0; i < here; ++i) {
      tokens[done + i] = file->token(offset + i);
      largest = std::max(largest, tokens[done + i]);
    }
    if (largest >= vocabulary) {
      const int* bad = std::find_if(tokens + done, tokens + done + here,
                                    [&](int token) { return token >= vocabulary; });
      throw UsageError(fmt::format(
          "{} {}: token {} at position {} is not below the vocabulary of {}; "
          "choose a larger --vocab-size or other data",
          flag_, file->file.path(), *bad, offset + size_t(bad - (tokens + done)), vocabulary));
    }
    done += here;
  }
}

// ---- batches

size_t count_valid_targets(const int* targets, size_t count) {
  return size_t(std::count_if(targets, targets + count, [](int target) { return target >= 0; }));
}

TokenBatches::TokenBatches(const TokenStream& tokens, const BatchShape& shape, int vocabulary,
                           bool shuffle, uint64_t seed, const std::string& flag)
    : tokens_(tokens),
      shape_(shape),
      vocabulary_(vocabulary),
      shuffle_(shuffle),
      seed_(seed),
      windows_(tokens.size() == 0 ? 0 : (tokens.size() - 1) / shape.rows()),
      steps_per_epoch_(int64_t(windows_ / shape.global_microbatches())) {
  if (steps_per_epoch_ == 0) {
    throw UsageError(fmt::format(
        "{}: {} tokens are available and one step needs {}: --microbatches {} x --data-parallel {} "
        "x --microbatch-size {} x --sequence-length {} + 1; give more data or make one smaller",
        flag, tokens.size(), shape.tokens_per_step() + 1, shape.microbatches, shape.replicas,
        shape.batch, shape.sequence));
  }
}

size_t TokenBatches::window(int64_t step, size_t k) const {
  const int64_t epoch = step / steps_per_epoch_;
  const size_t position = size_t(step % steps_per_epoch_) * shape_.global_microbatches() + k;
  return shuffle_ ? permuted(position, windows_, mix(seed_ ^ mix(uint64_t(epoch)))) : position;
}

void TokenBatches::fill(int64_t step, int replica, int* inputs, int* targets) const {
  const size_t rows = shape_.rows();
  std::vector<int> tokens(rows + 1);
  for (int i = 0; i < shape_.microbatches; ++i) {
    const size_t k = size_t(i) * size_t(shape_.replicas) + size_t(replica);
    tokens_.read(window(step, k) * rows, rows + 1, vocabulary_, tokens.data());
    if (inputs != nullptr) {
      std::copy_n(tokens.data(), rows, inputs + size_t(i) * rows);
    }
    if (targets != nullptr) {
      std::copy_n(tokens.data() + 1, rows, targets + size_t(i) * rows);
    }
  }
}

}  // namespace pipetrain
