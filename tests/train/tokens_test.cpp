#include "pipetrain/train/tokens.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

#ifndef PIPETRAIN_SANITIZE  // which has a handler of its own

// Fault: a file that is truncated while it is mapped ends the program with a bare SIGBUS.
TEST(TokensDeathTest, AFileThatIsTruncatedWhileItIsReadEndsTheProgramWithALine) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("data");
  write_file(path, std::string(100'000, 'a'));
  const TokenStream stream({path});
  std::filesystem::resize_file(path, 10'000);
  int token = 0;
  stream.read(9'000, 1, 256, &token);
  EXPECT_EXIT(stream.read(90'000, 1, 256, &token), testing::ExitedWithCode(1),
              "pipetrain: --data .*data: cannot be read: it was truncated");
  // A fault anywhere else stays what it was.
  const int file = open(path.c_str(), O_RDONLY);
  const auto* other =
      static_cast<const volatile char*>(mmap(nullptr, 100'000, PROT_READ, MAP_PRIVATE, file, 0));
  close(file);
  EXPECT_EXIT(token = other[90'000], testing::KilledBySignal(SIGBUS), "");
  munmap(const_cast<char*>(other), 100'000);
}

#endif  // PIPETRAIN_SANITIZE

// An llm.c token shard.
std::string shard(const std::vector<int>& tokens, int magic = 20240520, int version = 1) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = int32_t(tokens.size());
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  for (const int token : tokens) {
    const uint16_t value = uint16_t(token);
    bytes.append(reinterpret_cast<const char*>(&value), 2);
  }
  return bytes;
}

std::vector<int> counting(int first, int count) {
  std::vector<int> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

std::vector<int> read(const TokenStream& stream, size_t first, size_t count) {
  std::vector<int> tokens(count);
  stream.read(first, count, 65536, tokens.data());
  return tokens;
}

struct Batch {
  std::vector<int> inputs;
  std::vector<int> targets;
};

Batch batch(const DataSource& data, const BatchShape& shape, int64_t step, int replica = 0) {
  Batch result;
  result.inputs.resize(size_t(shape.microbatches) * shape.rows());
  result.targets = result.inputs;
  data.fill(step, replica, result.inputs.data(), result.targets.data());
  return result;
}

class Tokens : public testing::Test {
 protected:
  TokenStream stream(const std::string& content, const std::string& name = "data.bin") {
    write_file(directory_.file(name), content);
    return TokenStream({directory_.file(name)});
  }
  std::string error(const std::string& content) {
    return usage_error([&] { stream(content); });
  }
  TemporaryDirectory directory_;
};

TEST_F(Tokens, ShardHoldsTheTokensAfterItsHeader) {
  const TokenStream tokens = stream(shard({7, 65535, 300}));
  EXPECT_TRUE(tokens.shards());
  EXPECT_EQ(tokens.size(), 3u);
  EXPECT_EQ(read(tokens, 0, 3), (std::vector<int>{7, 65535, 300}));
}

TEST_F(Tokens, AnyOtherFileIsReadAsBytes) {
  const TokenStream tokens = stream("ab\xff");
  EXPECT_FALSE(tokens.shards());
  EXPECT_EQ(tokens.natural_vocabulary(), 256);
  EXPECT_EQ(read(tokens, 0, 3), (std::vector<int>{'a', 'b', 255}));
}

// Fault 39: shards of unequal size, or over 2 GiB; a shard smaller than a batch.
TEST_F(Tokens, ShardsOfUnequalSizeAreOneStreamInNameOrder) {
  write_file(directory_.file("part_2"), shard(counting(5, 4)));
  write_file(directory_.file("part_1"), shard(counting(0, 5)));
  write_file(directory_.file("part_3"), shard({}));
  write_file(directory_.file("part_4"), shard({9}));
  const TokenStream tokens({directory_.file("part_4"), directory_.file("part_2"),
                            directory_.file("part_3"), directory_.file("part_1")});
  EXPECT_EQ(read(tokens, 0, 10), counting(0, 10));
  EXPECT_EQ(read(tokens, 4, 2), counting(4, 2));
  EXPECT_EQ(read(tokens, 8, 2), counting(8, 2));
}

TEST_F(Tokens, ShardOverTwoGibibytesIsReadToItsEnd) {
  const size_t count = (size_t(1) << 31) + 5;  // more tokens than an int32 counts
  const std::string path = directory_.file("large.bin");
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  const uint32_t unsigned_count = uint32_t(count);
  std::memcpy(&header[2], &unsigned_count, sizeof(unsigned_count));
  write_file(path, std::string(reinterpret_cast<const char*>(header.data()), 1024));
  std::filesystem::resize_file(path, 1024 + 2 * count);  // a hole: takes no space on disk
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(std::streamoff(1024 + 2 * (count - 2)));
    file.write("\x05\x00\x06\x00", 4);
  }
  const TokenStream tokens({path});
  EXPECT_EQ(tokens.size(), count);
  EXPECT_EQ(read(tokens, count - 3, 3), (std::vector<int>{0, 5, 6}));
}

TEST_F(Tokens, BadFilesAreRefusedByNameAndReason) {
  EXPECT_PRED2(contains, usage_error([] { TokenStream({}); }), "--data: at least one file");
  EXPECT_PRED2(contains, usage_error([] { TokenStream({"/dev/null/x"}, "--validation"); }),
               "--validation /dev/null/x: cannot be opened: Not a directory");
  EXPECT_PRED2(contains, usage_error([&] { TokenStream({directory_.path()}); }), "is a directory");
  ASSERT_EQ(mkfifo(directory_.file("pipe").c_str(), 0600), 0);
  EXPECT_PRED2(contains, usage_error([&] { TokenStream({directory_.file("pipe")}); }),
               "is not a regular file");
  EXPECT_PRED2(contains, error(""), "is empty");
  const std::string whole = shard(counting(0, 4));
  EXPECT_PRED2(contains, error(whole.substr(0, whole.size() - 1)),
               "holds 1031 bytes, but its header says 4 tokens, which is 1032 bytes");
  EXPECT_PRED2(contains, error(whole + "x"), "holds 1033 bytes");
  EXPECT_PRED2(contains, error(whole.substr(0, 1000)), "holds 1000 bytes");
  EXPECT_PRED2(contains, error(shard({1}, 20240520, 2)), "version 2; version 1 is read");
  EXPECT_PRED2(contains, error(shard({1}, 20240521)), "first number is 20240521");
  EXPECT_PRED2(contains, error(shard({1}, 20240801, 7)), "32-bit tokens");
}

TEST_F(Tokens, ShardsAndOtherFilesDoNotMix) {
  write_file(directory_.file("a"), shard({1}));
  write_file(directory_.file("b"), "text");
  EXPECT_PRED2(contains, usage_error([&] {
                 TokenStream({directory_.file("a"), directory_.file("b")});
               }),
               "of one kind");
}

TEST_F(Tokens, TokenOutsideTheVocabularyIsFoundWithItsPosition) {
  std::vector<int> values(70000, 1);
  values[66000] = 257;
  const TokenStream tokens = stream(shard(values));
  tokens.check_vocabulary(258);
  const std::string message = usage_error([&] { tokens.check_vocabulary(257); });
  EXPECT_PRED2(contains, message, "token 257 at position 66000 is not below the vocabulary of 257");
  EXPECT_PRED2(contains, message, "--vocab-size");
  const TokenBatches batches(tokens, {1, 1, 1, 6000}, 257, false, 1);
  std::vector<int> inputs(6000);
  batches.fill(9, 0, inputs.data(), nullptr);
  EXPECT_PRED2(contains, usage_error([&] { batches.fill(10, 0, inputs.data(), nullptr); }),
               "position 66000");
}

// Nothing is left for a step to find after hours.
TEST_F(Tokens, EveryTokenIsCheckedByARank) {
  constexpr size_t count = 200000;
  constexpr size_t common = 70000;
  constexpr int ranks = 3;
  for (const size_t position : {size_t(0), common - 1, common, size_t(120000), count - 1}) {
    std::vector<int> values(count, 1);
    values[position] = 300;
    const TokenStream tokens = stream(shard(values));
    int found = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      try {
        tokens.check_vocabulary(300, rank, ranks, common);
      } catch (const UsageError&) {
        ++found;
      }
    }
    EXPECT_EQ(found, position < common ? ranks : 1) << position;
  }
}

TEST_F(Tokens, WindowsOverlapByOneToken) {
  const TokenStream tokens = stream(shard(counting(0, 25)));
  const BatchShape shape{2, 1, 2, 3};
  const TokenBatches batches(tokens, shape, 25, false, 1);
  EXPECT_EQ(batches.steps_per_epoch(), 2);
  EXPECT_EQ(batch(batches, shape, 0).inputs, counting(0, 12));
  EXPECT_EQ(batch(batches, shape, 0).targets, counting(1, 12));
  EXPECT_EQ(batch(batches, shape, 1).inputs, counting(12, 12));
  EXPECT_EQ(batch(batches, shape, 1).targets, counting(13, 12));
}

// Fault 12: the last batch is short.
TEST_F(Tokens, TailThatFillsNoGlobalBatchIsDroppedAndTheStreamBeginsAgain) {
  const TokenStream tokens = stream(shard(counting(0, 24)));  // one token short of a second step
  const BatchShape shape{2, 1, 2, 3};
  const TokenBatches batches(tokens, shape, 25, false, 1);
  EXPECT_EQ(batches.steps_per_epoch(), 1);
  EXPECT_EQ(batch(batches, shape, 7).inputs, counting(0, 12));
}

TEST_F(Tokens, TooLittleDataSaysWhatIsNeeded) {
  const TokenStream tokens = stream(shard(counting(0, 12)));
  EXPECT_PRED2(contains, usage_error([&] {
                 TokenBatches(tokens, {2, 1, 2, 3}, 25, false, 1);
               }),
               "12 tokens are available and one step needs 13");
  const TokenStream none = stream(shard({}), "none.bin");
  EXPECT_PRED2(contains, usage_error([&] {
                 TokenBatches(none, {1, 1, 1, 1}, 25, false, 1);
               }),
               "0 tokens are available and one step needs 2");
}

TEST_F(Tokens, ReplicasTakeTurnsInTheGlobalBatch) {
  const TokenStream tokens = stream(shard(counting(0, 9)));
  const BatchShape shape{2, 2, 1, 2};  // micro-batch i of replica j is window 2 i + j
  const TokenBatches batches(tokens, shape, 9, false, 1);
  EXPECT_EQ(batch(batches, shape, 0, 0).inputs, (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(batch(batches, shape, 0, 1).inputs, (std::vector<int>{2, 3, 6, 7}));
  EXPECT_EQ(batches.valid_targets(0), 8u);
}

TEST_F(Tokens, ShuffledEpochsArePermutationsThatDiffer) {
  const TokenStream tokens = stream(std::string(1001, 'x'));
  const BatchShape shape{4, 1, 1, 10};  // 100 windows, 25 steps
  const TokenBatches batches(tokens, shape, 256, true, 1);
  std::vector<std::vector<size_t>> epochs(2);
  for (int64_t step = 0; step < 50; ++step) {
    for (size_t k = 0; k < 4; ++k) {
      epochs[size_t(step / 25)].push_back(batches.window(step, k));
    }
  }
  for (const std::vector<size_t>& epoch : epochs) {
    EXPECT_EQ(std::set<size_t>(epoch.begin(), epoch.end()).size(), 100u);
    EXPECT_LT(*std::max_element(epoch.begin(), epoch.end()), 100u);
    int in_place = 0;
    for (size_t i = 0; i < epoch.size(); ++i) {
      in_place += epoch[i] == i ? 1 : 0;
    }
    EXPECT_LT(in_place, 8);
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

// Fault 40: the shuffle differs per rank, so that first and last stage see different data.
TEST_F(Tokens, ShuffleDependsOnTheSeedAlone) {
  std::vector<int> values(1001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = int(i);
  }
  const TokenStream tokens = stream(shard(values));
  const BatchShape shape{4, 1, 1, 10};
  const TokenBatches one(tokens, shape, 1001, true, 3);
  const TokenBatches same(tokens, shape, 1001, true, 3);
  const TokenBatches other(tokens, shape, 1001, true, 4);
  EXPECT_EQ(batch(one, shape, 30).inputs, batch(same, shape, 30).inputs);
  EXPECT_EQ(batch(one, shape, 30).targets, batch(same, shape, 30).targets);
  EXPECT_NE(batch(one, shape, 30).inputs, batch(other, shape, 30).inputs);
}

TEST_F(Tokens, ShuffleOfVeryFewWindowsWorks) {
  for (const size_t windows : {1u, 2u, 3u, 5u}) {
    const TokenStream tokens = stream(std::string(windows + 1, 'x'));
    const TokenBatches batches(tokens, {1, 1, 1, 1}, 256, true, 1);
    std::set<size_t> seen;
    for (size_t step = 0; step < windows; ++step) {
      seen.insert(batches.window(int64_t(step), 0));
    }
    EXPECT_EQ(seen.size(), windows);
    EXPECT_EQ(*seen.rbegin(), windows - 1);
  }
}

TEST_F(Tokens, IgnoredTargetsAreNotCounted) {
  const std::vector<int> targets = {0, -1, 5, -1};
  EXPECT_EQ(count_valid_targets(targets.data(), targets.size()), 2u);
}

TEST_F(Tokens, FixtureHoldsExactlyTenSteps) {
  const TokenStream tokens({PIPETRAIN_TEST_DATA "/gpt2_l8_c32/tokens.bin"});
  EXPECT_EQ(tokens.size(), 5121u);
  tokens.check_vocabulary(257);
  EXPECT_EQ(TokenBatches(tokens, {8, 1, 2, 32}, 257, false, 1).steps_per_epoch(), 10);
}

}  // namespace
}  // namespace pipetrain
