#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pipetrain {

// Tokens of one or more files, in the order of their names, as one stream. A file is either an
// llm.c token shard (256 x int32 header: 20240520, version 1, number of tokens; then uint16 tokens)
// or anything else, read as bytes. Files are mapped, not loaded.
class TokenStream {
 public:
  // `flag` names the files in messages. Throws UsageError: no file, missing, a directory, empty,
  // truncated, another version, shards mixed with other files.
  explicit TokenStream(std::vector<std::string> files, const std::string& flag = "--data");
  ~TokenStream();
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) = delete;

  size_t size() const;
  // The number of tokens and a checksum of the files: of 1024 blocks of 4 KiB over all of them, or
  // of the whole where they are smaller, but at least of the first and the last block of every
  // file.
  std::string content() const;
  bool shards() const;                                               // not bytes
  int natural_vocabulary() const { return shards() ? 50257 : 256; }  // where none is asked for

  // Throws UsageError, with file and position, if a token is not below `vocabulary`. `ranks` ranks
  // that call this read all tokens: each the first `common`, of the others its share.
  void check_vocabulary(int vocabulary, int rank = 0, int ranks = 1,
                        size_t common = size_t(1) << 26) const;
  // Tokens first .. first + count - 1, which must exist; checked against `vocabulary`.
  void read(size_t first, size_t count, int vocabulary, int* tokens) const;

 private:
  struct File;
  std::string flag_;
  std::vector<File> files_;
};

// The shape of a step's data over all replicas.
struct BatchShape {
  int microbatches = 1;  // M, per replica
  int replicas = 1;      // D
  int batch = 1;         // B, sequences per micro-batch
  int sequence = 1;      // T
  size_t rows() const { return size_t(batch) * size_t(sequence); }
  size_t global_microbatches() const { return size_t(microbatches) * size_t(replicas); }
  size_t tokens_per_step() const { return global_microbatches() * rows(); }
};

// What a training step reads. Every rank that asks for the same step gets the same answer.
class DataSource {
 public:
  virtual ~DataSource() = default;
  // Step 0, 1, ... of one replica. inputs and targets: (M, B*T) each, either may be null. Target -1
  // is ignored in the loss.
  virtual void fill(int64_t step, int replica, int* inputs, int* targets) const = 0;
  // Targets other than -1 in the step's global batch, over all replicas.
  virtual size_t valid_targets(int64_t step) const = 0;
};

size_t count_valid_targets(const int* targets, size_t count);

// Consecutive windows of B*T + 1 tokens of a stream: window g starts at g*B*T, its inputs are the
// first B*T, its targets the last. Micro-batch i of replica j of a step is the step's global
// micro-batch i*D + j. An epoch ends with its last full global batch; then the stream begins again.
class TokenBatches : public DataSource {
 public:
  // shuffle: the windows of epoch e come in a permutation that depends on seed and e alone, and the
  // ones that do not fill a global batch differ from epoch to epoch. Throws UsageError when the
  // stream is shorter than one global batch. `tokens` must outlive this.
  TokenBatches(const TokenStream& tokens, const BatchShape& shape, int vocabulary, bool shuffle,
               uint64_t seed, const std::string& flag = "--data");

  int64_t steps_per_epoch() const { return steps_per_epoch_; }
  // The window that global micro-batch k of a step reads.
  size_t window(int64_t step, size_t k) const;

  void fill(int64_t step, int replica, int* inputs, int* targets) const override;
  size_t valid_targets(int64_t) const override { return shape_.tokens_per_step(); }

 private:
  const TokenStream& tokens_;
  BatchShape shape_;
  int vocabulary_;
  bool shuffle_;
  uint64_t seed_;
  size_t windows_;
  int64_t steps_per_epoch_;
};

}  // namespace pipetrain
