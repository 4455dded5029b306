#ifdef PIPETRAIN_HOST

#include "pipetrain/train/start.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "pipetrain/device/info.h"
#include "support/rank_threads.h"
#include "tests/emulator/emulator_settings.h"
#include "train/temporary.h"

// What ranks must have in common, and what they share.

namespace pipetrain {
namespace {

const std::string fixture = PIPETRAIN_TEST_DATA "/gpt2_l8_c32";

// Two ranks with files and flags of their own.
class TwoRanks : public testing::Test {
 protected:
  TwoRanks() {
    for (const int rank : {0, 1}) {
      std::filesystem::create_directory(file(rank, ""));
      std::filesystem::copy(fixture, file(rank, "model"));
      write_file(file(rank, "data"), std::string(100'000, 'a'));
      write_file(file(rank, "validation"), std::string(100'000, 'b'));
      TrainConfig& config = configs_[size_t(rank)];
      config.init = file(rank, "model");
      config.data = {file(rank, "data")};
      config.validation = {file(rank, "validation")};
      config.microbatches = 2;
      config.vocab_size = std::nullopt;
      config.sequence_length = 8;
    }
  }
  std::string file(int rank, const std::string& name) const {
    return directory_.file(std::to_string(rank) + "/" + name);
  }
  // Inverts one byte of a file of rank 1.
  void change(const std::string& name, size_t position) {
    std::string content = read_file(file(1, name));
    content.at(position) = char(~content.at(position));
    write_file(file(1, name), content);
  }
  // What both ranks are told; empty: they agree.
  std::string refusal() const {
    std::array<std::string, 2> told;
    test::run_ranks(2, [&](Control& control) {
      try {
        plan_job(configs_[size_t(control.rank())], control, nullptr);
      } catch (const UsageError& error) {
        told[size_t(control.rank())] = error.what();
      }
    });
    EXPECT_EQ(told[0], told[1]);
    return told[0];
  }

  TemporaryDirectory directory_;
  std::array<TrainConfig, 2> configs_;
};

TEST_F(TwoRanks, AgreeWhenTheSameFilesHaveOtherPaths) {
  EXPECT_EQ(refusal(), "");
}

// Fault 40: ranks see different data.
TEST_F(TwoRanks, OtherTokensAreRefused) {
  change("data", 61'234);
  const std::string text = refusal();
  EXPECT_PRED2(contains, text, "must be equal on all ranks");
  EXPECT_PRED2(contains, text, "rank 1 has '--data 100000 tokens, checksum ");
}

TEST_F(TwoRanks, OtherValidationTokensAreRefused) {
  change("validation", 99'999);
  EXPECT_PRED2(contains, refusal(), "rank 1 has '--validation 100000 tokens, checksum ");
}

TEST_F(TwoRanks, OtherWeightsAreRefused) {
  change("model/model.safetensors", 200'000);
  EXPECT_PRED2(contains, refusal(), "rank 1 has '--init weights of checksum ");
}

TEST_F(TwoRanks, AFlagOfOneRankIsRefusedAndShown) {
  const auto expect_shown = [&](const std::function<void(TrainConfig&)>& set,
                                const std::string& shown) {
    const TrainConfig before = configs_[1];
    set(configs_[1]);
    EXPECT_PRED2(contains, refusal(), "and rank 1 has '" + shown + "'");
    configs_[1] = before;
  };
  expect_shown([](TrainConfig& config) { config.seed = 7; }, "--seed 7");
  expect_shown([](TrainConfig& config) { config.shuffle = false; }, "--shuffle off");
  expect_shown([](TrainConfig& config) { config.schedule = "gpipe"; }, "--schedule gpipe");
  expect_shown([](TrainConfig& config) { config.balance = "measured"; }, "--balance measured");
  expect_shown([](TrainConfig& config) { config.export_dir = "x"; }, "--export given");
  expect_shown([](TrainConfig& config) { config.microbatches = 12; }, "--microbatches 12");
}

// Of large files a part of the blocks is read, the first and the last among them.
TEST(Checksum, SeesTheEndsOfALargeFile) {
  const TemporaryDirectory directory;
  constexpr size_t size = 5'000'001;
  const auto checksum = [&](size_t changed) {
    std::string content(size, 'a');
    if (changed < size) {
      content[changed] = 'b';
    }
    write_file(directory.file("data"), content);
    return TokenStream({directory.file("data")}).content();
  };
  const std::string whole = checksum(size);
  EXPECT_EQ(checksum(size), whole);
  EXPECT_NE(checksum(0), whole);
  EXPECT_NE(checksum(size - 1), whole);
}

std::vector<size_t> free_memory_of(int ranks) {
  std::vector<size_t> bytes(static_cast<size_t>(ranks));
  test::run_ranks(
      ranks, [&](Control& control) { bytes[size_t(control.rank())] = select_own_device(control); });
  return bytes;
}

TEST(OwnDevice, RanksThatShareADeviceShareItsFreeMemory) {
  constexpr size_t gib = size_t(1) << 30;
  const test::WithSettings settings([](emulator::Settings& changed) {
    changed.devices = 2;
    changed.memory_bytes = 8 * gib;
  });
  const std::vector<size_t> bytes = free_memory_of(3);
  EXPECT_NEAR(double(bytes[0]), 4.0 * gib, 0.1 * gib);
  EXPECT_NEAR(double(bytes[1]), 8.0 * gib, 0.1 * gib);
  EXPECT_EQ(bytes[2], bytes[0]);
}

TEST(OwnDevice, EmulatedDevicesShareTheMemoryOfTheMachine) {
  const size_t alone = free_memory_of(1)[0];
  for (const size_t bytes : free_memory_of(4)) {
    EXPECT_NEAR(double(bytes), double(alone) / 4, 0.01 * double(alone));
  }
}

}  // namespace
}  // namespace pipetrain

#endif  // PIPETRAIN_HOST
