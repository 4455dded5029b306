#ifndef PIPETRAIN_SANITIZE  // MPI's own reports would drown a sanitizer's

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/program.h"

// Input that is wrong in the light of files, devices or ranks: refused before anything is written.

namespace pipetrain::test {
namespace {

const std::string fixture = std::string(PIPETRAIN_TEST_DATA) + "/gpt2_l8_c32";

struct Refusal {
  std::string flags;  // of train
  int code = 2;
  std::vector<std::string> parts;
};

void expect_all_refused(const std::vector<Refusal>& cases, const TemporaryDirectory& directory) {
  std::vector<Arguments> commands;
  for (const Refusal& refusal : cases) {
    commands.push_back(pipetrain(words("train " + refusal.flags)));
  }
  const std::vector<std::string> before = listing(directory.path());
  const std::vector<Result> results = run_all(commands, directory.path());
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].flags);
    expect_refused(results[i], cases[i].code, cases[i].parts);
    EXPECT_EQ(results[i].err, error_lines(results[i])[0] + "\n");
  }
  EXPECT_EQ(listing(directory.path()), before);
}

TEST(Input, WrongDataIsRefusedByItsFile) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 2000);
  write_file(directory.file("empty"), "");
  const std::vector<int> tokens(1000, 7);
  write_file(directory.file("shard"), shard(tokens));
  write_file(directory.file("truncated"), shard(tokens).substr(0, 2000));
  write_file(directory.file("longer"), shard(tokens) + "x");
  write_file(directory.file("wrong_magic"), shard(tokens, 20240521));
  write_file(directory.file("wrong_version"), shard(tokens, 20240520, 2));
  write_file(directory.file("lying"), shard(tokens, 20240520, 1, 999));
  write_file(directory.file("large_token"), shard(std::vector<int>(100, 60000)));
  const std::string train = tiny_model + "--steps 1 --run-dir run --data ";
  expect_all_refused(
      {
          {train + "missing", 2, {"--data missing", "No such file"}},
          {train + ".", 2, {"--data .", "directory"}},
          {train + "empty", 2, {"--data", "empty"}},
          {train + "truncated", 2, {"--data truncated", "2000 bytes", "1000 tokens"}},
          {train + "longer", 2, {"--data longer", "1000 tokens"}},
          {train + "wrong_magic", 2, {"--data wrong_magic", "20240521"}},
          {train + "wrong_version", 2, {"--data wrong_version", "version 2"}},
          {train + "lying", 2, {"--data lying", "999 tokens"}},
          {train + "shard text", 2, {"--data", "shard", "text"}},
          {train + "text --microbatches 250", 2, {"--data", "2000", "2001", "--microbatches 250"}},
          {train + "text --vocab-size 64", 2, {"--data text", "--vocab-size", "64"}},
          {train + "large_token", 2, {"--data large_token", "token 60000", "50257"}},
          {train + "shard --vocab-size 7", 2, {"--data shard", "token 7", "--vocab-size"}},
      },
      directory);
}

TEST(Input, ModelsAndSchedulesThatCannotBeAreRefused) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const std::string train = tiny_model + "--data text --steps 1 --run-dir run ";
  const std::string sizes = "--data text --steps 1 --run-dir run --sequence-length 8 ";
  expect_all_refused(
      {
          {sizes + "--layers 4 --hidden 20 --heads 2", 2, {"--hidden 20", "multiple of 8"}},
          {sizes + "--layers 4 --hidden 24 --heads 2", 2, {"--heads 2", "multiple of 8"}},
          {sizes + "--layers 4 --hidden 16 --heads 3", 2, {"--heads 3"}},
          {sizes + "--layers 2147483647 --hidden 16 --heads 2", 2, {"--layers 2147483647"}},
          {sizes + "--layers 4 --hidden 2147483640 --heads 1", 2, {"--hidden 2147483640"}},
          {train + "--vocab-size 2147483647", 2, {"--vocab-size 2147483647"}},
          {train + "--microbatch-size 2147483647", 2, {"--microbatch-size 2147483647"}},
          {train + "--schedule foo", 2, {"--schedule", "foo", "1f1b", "auto, or csv:FILE"}},
          {train + "--schedule 1f1b --chunks 2", 2, {"--chunks"}},
          {train + "--schedule 1f1b --group 2", 2, {"--group"}},
          {train + "--schedule dualpipe", 2, {"dualpipe", "ranks"}},
          {train + "--schedule interleaved --chunks 2147483647", 2, {"--chunks"}},
          {train + "--layers-per-stage 2,2", 2, {"--layers-per-stage", "1 stages"}},
          {train + "--layers-per-stage 3", 2, {"--layers-per-stage 3", "--layers is 4"}},
          {train + "--layers-per-stage -4", 2, {"--layers-per-stage"}},
          {"--data text --steps 1 --model gpt2-9b", 2, {"--model gpt2-9b", "gpt2-124m"}},
          {train + "--memory-limit 1e-6", 3, {"--memory-limit", "weights", "total"}},
          {sizes + "--layers 65536 --hidden 131072 --heads 16", 2, {"--hidden 131072"}},
          {sizes + "--layers 8 --hidden 32768 --heads 16", 3, {"free", "total"}},
      },
      directory);
}

TEST(Input, WrongCheckpointsAreRefused) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const std::string config = read_file(fixture + "/config.json");
  const std::string weights = read_file(fixture + "/model.safetensors");
  const auto checkpoint = [&](const std::string& name, const std::string& json,
                              const std::string& tensors) {
    std::filesystem::create_directory(directory.file(name));
    write_file(directory.file(name + "/config.json"), json);
    if (!tensors.empty()) {
      write_file(directory.file(name + "/model.safetensors"), tensors);
    }
  };
  checkpoint("no_weights", config, "");
  checkpoint("no_json", "{", weights);
  checkpoint("short_header", config, weights.substr(0, 100));
  checkpoint("short_data", config, weights.substr(0, weights.size() - 1));
  checkpoint("garbage", config, std::string(1000, '\xff'));
  std::string other = config;
  other.replace(other.find("\"n_layer\": 8"), 12, "\"n_layer\": 9");
  checkpoint("other_layers", other, weights);
  const std::string train = "--data text --steps 1 --microbatches 2 --run-dir run --init ";
  expect_all_refused(
      {
          {train + "missing", 2, {"--init missing"}},
          {train + "text", 2, {"--init text"}},
          {train + "no_weights", 2, {"--init no_weights/model.safetensors"}},
          {train + "no_json", 2, {"--init no_json/config.json"}},
          {train + "short_header", 2, {"--init short_header/model.safetensors"}},
          {train + "short_data", 2, {"--init short_data/model.safetensors"}},
          {train + "garbage", 2, {"--init garbage/model.safetensors"}},
          {train + "other_layers", 2, {"--init other_layers/model.safetensors", "h.8."}},
          {train + fixture + " --sequence-length 33", 2, {"--sequence-length 33", "32"}},
      },
      directory);
}

TEST(Input, OutputsThatCannotBeWrittenAreRefusedBeforeAnyIsCreated) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  std::filesystem::create_directory(directory.file("used"));
  write_file(directory.file("used/metrics.jsonl"), "{}\n");
  write_file(directory.file("used/.lock"), "");
  const std::string train = tiny_model + "--data text --steps 1 ";
  expect_all_refused(
      {
          {train + "--run-dir text", 2, {"--run-dir text"}},
          {train + "--run-dir text/run", 2, {"--run-dir text/run"}},
          {train + "--run-dir /proc/run", 2, {"--run-dir /proc/run"}},
          {train + "--run-dir used --export new", 2, {"--run-dir used", "already holds"}},
          {train + "--run-dir new --trace .", 2, {"--trace .", "directory"}},
          {train + "--run-dir new --trace text/trace", 2, {"--trace"}},
          {train + "--run-dir new --trace /dev/null", 2, {"--trace /dev/null"}},
          {train + "--run-dir new --dump-gradients /proc/g", 2, {"--dump-gradients"}},
          {train + "--run-dir new --trace other/trace --export text", 2, {"--export text"}},
          {train + "--run-dir new --trace other/trace --export /proc/x", 2, {"--export"}},
      },
      directory);
}

// Names that the file system itself refuses.
TEST(Input, PathsThatCannotBeAreRefusedByTheirFlag) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const TemporaryDirectory elsewhere;
  std::filesystem::create_symlink("loop", elsewhere.file("loop"));
  const std::string train = tiny_model + "--steps 1 --data text ";
  std::vector<Refusal> cases;
  for (const std::string& path : {elsewhere.file("loop"), std::string(300, 'x'),
                                  "new/" + std::string(300, 'x'), std::string(5000, 'y')}) {
    for (const char* flag : {"--trace", "--dump-gradients", "--export", "--run-dir", "--config",
                             "--data", "--validation", "--init"}) {
      cases.push_back({train + flag + " " + path, 2, {flag}});
    }
    cases.push_back({train + "--schedule csv:" + path, 2, {"--schedule csv:"}});
  }
  // Until a file is complete it has a longer name.
  for (const std::string& path : {std::string(250, 'x'), "new/" + std::string(250, 'x')}) {
    cases.push_back({train + "--trace " + path, 2, {"--trace", "too long"}});
    cases.push_back({train + "--dump-gradients " + path, 2, {"--dump-gradients", "too long"}});
  }
  std::filesystem::create_directory(directory.file("odd"));
  std::filesystem::create_directory(directory.file("odd/log.txt"));
  cases.push_back({train + "--run-dir odd", 2, {"--run-dir odd/log.txt"}});
  for (const char* name : {"metrics.jsonl", "plan.csv"}) {
    const std::string run_dir = std::string("with_") + name;
    std::filesystem::create_directories(directory.file(run_dir + "/" + name));
    cases.push_back({train + "--schedule auto --run-dir " + run_dir, 2, {run_dir + "/" + name}});
  }
  std::filesystem::create_directory(directory.file("pipe"));
  mkfifo(directory.file("pipe/metrics.jsonl").c_str(), 0600);
  cases.push_back({train + "--run-dir pipe", 2, {"--run-dir pipe/metrics.jsonl"}});
  expect_all_refused(cases, directory);
}

// A file that a run writes is none that it reads, whatever it is called, and none that it writes
// twice.
TEST(Input, OutputsInTheWayOfInputsOrOfEachOtherAreRefused) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  write_text(directory, "other", 4000);
  write_file(directory.file("c.toml"), "steps = 1\n");
  write_file(directory.file("plan.csv"), "0F0,0B0,0F1,0B1\n");
  std::filesystem::copy(fixture, directory.file("model"));
  std::filesystem::create_symlink("text", directory.file("link"));
  std::filesystem::create_directories(directory.file("odd/config.json"));
  const std::string init = "--steps 1 --data text --init model ";
  const std::string train = tiny_model + "--steps 1 --data text --microbatches 2 ";
  expect_all_refused(
      {
          {train + "--trace text", 2, {"--trace text", "--data text reads"}},
          {train + "--dump-gradients ./text", 2, {"--dump-gradients ./text", "--data text"}},
          {train + "--trace link", 2, {"--trace link", "--data text reads"}},
          {train + "--validation other --trace other", 2, {"--validation other reads"}},
          {train + "--config c.toml --trace c.toml", 2, {"--config c.toml reads"}},
          {train + "--schedule csv:plan.csv --trace plan.csv", 2, {"--schedule csv:plan.csv"}},
          {init + "--export model", 2, {"--export model", "--init model reads"}},
          {init + "--dump-gradients model/model.safetensors", 2, {"--init model reads"}},
          {train + "--run-dir rd --trace rd/metrics.jsonl", 2, {"--trace rd/metrics.jsonl"}},
          {train + "--run-dir rd --trace ./rd/log.txt", 2, {"--trace ./rd/log.txt"}},
          {train + "--trace g --dump-gradients ./g", 2, {"--dump-gradients ./g", "--trace g"}},
          {train + "--export e --trace e/config.json", 2, {"--export e", "--trace"}},
          {train + "--export odd", 2, {"--export odd/config.json", "directory"}},
          {train + "--export e --run-dir e/model.safetensors/x", 2, {"--run-dir", "--export e"}},
          {train + "--export e --run-dir e/config.json/", 2, {"--run-dir", "--export e"}},
          {train + "--trace a --export a", 2, {"--export a", "--trace a writes"}},
          {train + "--trace a/b --run-dir a/b", 2, {"--run-dir a/b", "--trace a/b writes"}},
          {train + "--trace a/b --dump-gradients a", 2, {"--trace a/b", "--dump-gradients a w"}},
          {train + "--export rd/log.txt --run-dir rd", 2, {"--export rd/log.txt", "--run-dir"}},
          {train + "--export rd/metrics.jsonl --run-dir rd", 2, {"--export", "--run-dir rd"}},
          {train + "--trace rd/.lock --run-dir rd", 2, {"--run-dir rd", "--trace rd/.lock"}},
          {train + "--run-dir rd --schedule auto --trace rd/plan.csv/x", 2, {"--trace", "rd"}},
      },
      directory);
}

// Ranks find the same error; one of them says it.
TEST(Input, AJobReportsAnErrorOnce) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const std::vector<std::string> before = listing(directory.path());
  const std::string train = tiny_model + "--data text --steps 1 --run-dir run ";
  const Result remainder = train_on_ranks(
      4, train + "--schedule interleaved --chunks 3 --group 4 --microbatches 5", directory.path());
  expect_refused(remainder, 2, {"--schedule interleaved with --ranks 4", "--microbatches"});
  EXPECT_FALSE(contains(remainder.err, "interleaved: --schedule")) << remainder.err;
  expect_refused(train_on_ranks(4, train + "--steps 0", directory.path()), 2, {"--steps"});
  expect_refused(train_on_ranks(2, train + "--memory-limit 1e-6", directory.path()), 3,
                 {"--memory-limit", "total"});
  expect_refused(train_on_ranks(3, train + "--schedule dualpipe", directory.path()), 2,
                 {"dualpipe"});
  EXPECT_EQ(listing(directory.path()), before);
}

TEST(Input, RanksWithDifferentCommandsAreRefused) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const Arguments train = pipetrain(words("train --data text --steps 1 " + tiny_model));
  const Arguments eval = pipetrain(words("eval " + fixture + " --data text"));
  const Result result = Process(on_ranks(1, train) + Arguments{":", "-n", "1"} + eval,
                                directory.path(), mpi_environment())
                            .wait();
  expect_refused(result, 2, {"the command", "rank 0 has 'train' and rank 1 has 'eval'"});
}

// What only one rank finds is said by that rank.
TEST(SweepInput, ARankReportsWhatItAloneFinds) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  write_file(directory.file("flags.toml"), "steps = 1\n");
  const std::string alone = fmt::format(
      "[ $OMPI_COMM_WORLD_RANK = 1 ] && cd / ; exec {} train {} --data text --config flags.toml",
      PIPETRAIN_BINARY, tiny_model);
  const Result result =
      Process(on_ranks(2, {"bash", "-c", alone}), directory.path(), mpi_environment()).wait();
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_PRED2(contains, result.err, "pipetrain: rank 1: --config: flags.toml cannot be read");
}

// srun without PMIx starts as many jobs of one rank as it was asked for ranks.
TEST(Input, SeveralJobsOfOneRankAreRefused) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const Arguments train = pipetrain(words("train --data text --steps 1 " + tiny_model));
  const Result first =
      Process(train, directory.path(), {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).wait();
  expect_refused(first, 2, {"4 ranks", "srun --mpi=pmix"});
}

}  // namespace
}  // namespace pipetrain::test

#endif  // PIPETRAIN_SANITIZE
