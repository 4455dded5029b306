#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/program.h"

// Everything that is found before MPI starts: flags, the configuration file, plan and doctor.

namespace pipetrain::test {
namespace {

// Runs `pipetrain ARGUMENTS` for each case and requires a refusal with exit code 2 that holds
// `part`.
struct Refusal {
  Arguments arguments;
  std::string part;
};

void expect_all_refused(const std::vector<Refusal>& cases, const TemporaryDirectory& directory) {
  std::vector<Arguments> commands;
  for (const Refusal& refusal : cases) {
    commands.push_back(pipetrain(refusal.arguments));
  }
  const std::vector<Result> results = run_all(commands, directory.path());
  for (size_t i = 0; i < cases.size(); ++i) {
    std::string command;
    for (const std::string& word : cases[i].arguments) {
      command += " '" + word + "'";
    }
    SCOPED_TRACE(command);
    expect_refused(results[i], 2, {cases[i].part});
  }
}

TEST(Usage, WrongNumbersAreRefusedByTheirFlag) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 2000);
  const std::vector<std::string> no_number = {"", "abc", "3 4", "0x8", "1,5", "true"};
  const struct {
    std::vector<std::string> flags;
    std::vector<std::string> values;
  } groups[] = {
      {{"--layers", "--hidden", "--heads", "--vocab-size", "--sequence-length", "--chunks",
        "--group", "--microbatches", "--microbatch-size"},
       {"0", "-1", "nan", "1.5", "1e3", "5000000000", "99999999999999999999999"}},
      {{"--steps", "--validation-every", "--validation-batches"},
       {"0", "-1", "nan", "1.5", "99999999999999999999999"}},
      {{"--warmup-steps", "--seed"}, {"-1", "nan", "1.5", "99999999999999999999999"}},
      {{"--memory-limit", "--epsilon", "--timeout"}, {"0", "-1", "nan", "inf", "1e999", "1e-400"}},
      {{"--learning-rate", "--min-learning-rate", "--weight-decay", "--grad-clip"},
       {"-1", "nan", "inf", "1e999", "1e-400"}},
      {{"--beta1", "--beta2"}, {"-0.1", "1", "1.5", "nan", "1e-400"}},
  };
  std::vector<Refusal> cases;
  for (const auto& [flags, values] : groups) {
    size_t turn = 0;
    for (const std::string& flag : flags) {
      std::vector<std::string> wrong = values;
      wrong.push_back(no_number[turn++ % no_number.size()]);
      for (const std::string& value : wrong) {
        Arguments model = words(tiny_model);
        const auto given = std::find(model.begin(), model.end(), flag);
        if (given != model.end()) {
          model.erase(given, given + 2);
        }
        cases.push_back(
            {Arguments{"train"} + model + Arguments{"--data", "text", flag, value}, flag});
      }
    }
  }
  expect_all_refused(cases, directory);
  EXPECT_EQ(listing(directory.path()), std::vector<std::string>{"text"});
}

TEST(Usage, WrongFlagsAreRefused) {
  const TemporaryDirectory directory;
  const std::string train = "train --data text " + tiny_model;
  expect_all_refused(
      {
          {{}, "subcommand"},
          {{"foo"}, "foo"},
          {{"--foo"}, "--foo"},
          {words("train plan"), "plan"},
          {words("train"), "--layers"},
          {words("train " + tiny_model), "--data"},
          {words(train + "--foo 1"), "--foo"},
          {words(train + "--step 1"), "--step"},
          {words(train + "--steps"), "--steps"},
          {words(train + "--steps 1 --steps 2"), "--steps"},
          {words(train + "--precision fp16"), "--precision fp16"},
          {words(train + "--lr-schedule step"), "--lr-schedule step"},
          {words(train + "--recompute some"), "--recompute some"},
          {words(train + "--defer none"), "--defer none"},
          {words("bench --synthetic --recompute full"), "--recompute"},
          {words("plan --schedule interleaved --chunks 0"), "--chunks 0: must be at least 1"},
          {words("plan --schedule interleaved --group 0"), "--group 0: must be at least 1"},
          {words("plan --schedule 1f1b --bandwidth 0"), "--bandwidth 0: must be above 0"},
          {words("plan --schedule 1f1b --recompute full"),
           "--recompute: it says nothing without a model"},
          {words(train + "--shuffle yes"), "--shuffle yes"},
          {words(train + "--learning-rate 1e-4 --min-learning-rate 1e-3"), "--min-learning-rate"},
          {words(train + "--init x"), "--layers"},
          {words("train --data text --init x --model gpt2-124m"), "--init"},
          {words("train --data text --model gpt2-124m --hidden 16"), "--hidden"},
          {Arguments{"train", "--data", ""} + words(tiny_model), "--data"},
          {words(train) + Arguments{"--run-dir", ""}, "--run-dir"},
          {words("doctor --foo"), "--foo"},
          {words("plan"), "--schedule"},
          {words("plan --schedule foo"), "pipedream-2bw auto all, or csv:FILE"},
          {words("plan --schedule 1f1b --ranks 0"), "--ranks 0"},
          {words("plan --schedule 1f1b --microbatches 2147483647"), "--microbatches"},
          {words("plan --schedule interleaved --chunks 2147483647"), "--chunks"},
          {words("plan --schedule 1f1b --chunks 2"), "--chunks"},
          {words("plan --schedule 1f1b --forward 1,x"), "--forward"},
          {words("plan --schedule 1f1b --forward 1,2,3"), "--forward"},
          {words("plan --schedule 1f1b --forward -1"), "--forward"},
          {words("plan --schedule 1f1b --forward nan"), "--forward"},
          {words("plan --schedule 1f1b --forward 1,2,,3"), "--forward 1,2,,3"},
          {words("plan --schedule 1f1b --forward=1,2,"), "--forward 1,2,"},
          {words(train + "--layers-per-stage ,4"), "--layers-per-stage ,4"},
          {words("plan --schedule 1f1b --bytes 1"), "--bandwidth"},
          {words("plan --schedule 1f1b --device h100"), "--device"},
          {words("plan --schedule 1f1b --link pcie4"), "--link"},
          {words("plan --schedule 1f1b --precision bf16"), "--precision"},
          {words("plan --schedule 1f1b --memory-limit 3"), "--memory-limit: the model"},
          {words("plan --schedule 1f1b --microbatch-size 3"), "--microbatch-size: the model"},
          {words("plan --schedule 1f1b --objective span"), "--objective"},
          {words("plan --schedule auto --group 2"), "--group"},
          {words("plan --schedule all --format svg"), "--format svg"},
          {words("plan --schedule 1f1b --model gpt2-124m --layers 4"), "--layers 4: --model"},
          {words("plan --schedule 1f1b --model gpt2-124m --sequence-length 2048"),
           "--sequence-length 2048: must be at most 1024"},
          {words("plan --schedule 1f1b --model gpt2-124m --forward 2"), "--forward"},
          {words("plan --schedule all --chunks 100000"), "no schedule is left; gpipe: --chunks"},
          {words("plan --schedule 1f1b --format xml"), "--format xml"},
          {words("plan --schedule 1f1b --output missing/plan"), "--output missing/plan"},
          {words("plan --schedule csv:missing"), "csv:missing"},
          {words("plan --schedule csv:."), "csv:.: is a directory"},
          {words("plan --schedule dualpipe --ranks 3"), "--ranks"},
          {words("plan --schedule interleaved --ranks 4 --chunks 3 --group 4 --microbatches 5"),
           "--microbatches"},
      },
      directory);
  EXPECT_EQ(listing(directory.path()), std::vector<std::string>{});
}

TEST(Usage, WrongConfigurationFilesAreRefused) {
  const TemporaryDirectory directory;
  const std::string good = "layers = 4\nhidden = 16\nheads = 2\nsequence-length = 8\n";
  std::vector<Refusal> cases = {
      {words("train --config missing.toml"), "--config: missing.toml cannot be read"},
      {words("train --config ."), "--config: . is a directory"},
      {words("train --config"), "--config"},
      {{"train", "--config", ""}, "--config"},
      {words("--config file0.toml"), "--config"},
  };
  const struct {
    std::string text;
    std::string part;
  } files[] = {
      {"stepz = 1", "line 5: 'stepz' is no flag of train"},
      {"schedules = \"1f1b\"", "'schedules'"},
      {"layers_per_stage = [4]", "'layers_per_stage'"},
      {"ranks = 4", "'ranks' is no flag of train"},
      {"config = \"x\"", "'config'"},
      {"help = true", "'help'"},
      {"--steps = 1", "'--steps' is no flag"},
      {"layers = 4", "key 'layers' is given twice"},
      {"[train]\nsteps = 1", "line 5: sections"},
      {"train.steps = 1", "line 5: dotted keys"},
      {"steps = \"1\"", "line 5: steps is '1'; a whole number is needed"},
      {"steps = 1.5", "steps is '1.5'"},
      {"steps = true", "steps is 'true'"},
      {"steps = [1, 2]", "steps takes one value"},
      {"learning-rate = \"fast\"", "learning-rate is 'fast'; a number is needed"},
      {"schedule = 1", "schedule is '1'; a string in quotes is needed"},
      {"schedule = 1f1b", "'1f1b' is no value"},
      {"shuffle = true", "shuffle is 'true'; a string in quotes is needed"},
      {"layers-per-stage = \"4\"", "layers-per-stage is '4'"},
      {"layers-per-stage = [2, 2.5]", "layers-per-stage is '2.5'"},
      {"data = []", "data needs at least one value"},
      {"data = [\"a\", 1]", "data is '1'; a string in quotes is needed"},
      {"data = \"text\nsteps = 1", "line 5: a string has no end"},
      {"data = \"text\"\nsteps = 0", "--steps 0"},
      {"data = \"text\"\nseed = -1", "--seed"},
      {"data = \"text\"\nlayers-per-stage = [1, 99999999999]", "--layers-per-stage"},
      {std::string("\0\x7f ELF", 6), "line 5"},
  };
  size_t number = 0;
  for (const auto& [text, part] : files) {
    const std::string name = fmt::format("file{}.toml", number++);
    write_file(directory.file(name), good + text);
    cases.push_back({{"train", "--config", name}, part});
  }
  write_file(directory.file("plan.toml"), "schedule = \"1f1b\"\nlowered = 1\n");
  cases.push_back({words("plan --config plan.toml"), "lowered is '1'; true or false is needed"});
  expect_all_refused(cases, directory);
}

// A value that no flag takes is refused by the flag's name: the file is not passed over.
TEST(Usage, EveryFlagMayStandInTheConfigurationFile) {
  const TemporaryDirectory directory;
  write_text(directory, "text", 4000);
  const Result help = run_pipetrain("train --help", directory.path());
  ASSERT_EQ(help.code, 0) << help.err;
  std::vector<Refusal> cases;
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream parts(line);
    std::string flag;
    std::string type;
    parts >> flag >> type;
    if (!flag.starts_with("--")) {
      continue;
    }
    const std::string name = flag.substr(2) + ".toml";
    const bool text = type.starts_with("TEXT");
    write_file(directory.file(name),
               fmt::format("{} = {}\n", flag.substr(2), text ? "\"/dev/null/x\"" : "-7"));
    // The command line, which comes first, leaves the flag out.
    Arguments arguments = {"train", "--config", name};
    const Arguments others = words(tiny_model + "--steps 1 --data text");
    for (size_t i = 0; i < others.size(); i += 2) {
      if (others[i] != flag) {
        arguments = arguments + Arguments{others[i], others[i + 1]};
      }
    }
    cases.push_back({arguments, flag});
  }
  ASSERT_GT(cases.size(), 30u);
  expect_all_refused(cases, directory);
}

TEST(Usage, ATableIsNotOverwrittenByItsPlan) {
  const TemporaryDirectory directory;
  write_file(directory.file("q.csv"), "0F0,0B0\n");
  write_file(directory.file("p.toml"), "schedule = \"1f1b\"\n");
  expect_all_refused({{words("plan --schedule csv:q.csv --output ./q.csv"), "--output ./q.csv"},
                      {words("plan --config p.toml --output p.toml"), "--config reads"}},
                     directory);
  EXPECT_EQ(read_file(directory.file("q.csv")), "0F0,0B0\n");
  EXPECT_EQ(read_file(directory.file("p.toml")), "schedule = \"1f1b\"\n");
}

// Fault: what a full disk did not take is lost with exit code 0.
TEST(Usage, OutputThatCannotBeWrittenIsAnError) {
  const TemporaryDirectory directory;
  for (const char* arguments : {"plan --schedule 1f1b", "doctor", "train --help", "--version",
                                "plan --schedule 1f1b --ranks 8 --microbatches 256 --format svg"}) {
    const std::string command =
        fmt::format("{} {} >/dev/full", fmt::join(pipetrain({}), " "), arguments);
    const Result result = Process({"bash", "-c", command}, directory.path(), {}).wait();
    EXPECT_EQ(result.code, 1) << command;
    EXPECT_PRED2(contains, result.err, "standard output cannot be written");
  }
}

TEST(Usage, AHandfulOfMicrobatchesIsWarnedOfWhereItCosts) {
  const TemporaryDirectory directory;
  const auto errors = [&](const std::string& arguments) {
    return run_pipetrain("plan --ranks 4 " + arguments, directory.path()).err;
  };
  EXPECT_PRED2(contains, errors("--schedule 1f1b --microbatches 4"), "the bubble is 42.9%");
  EXPECT_EQ(errors("--schedule 1f1b --microbatches 13"), "");
  EXPECT_EQ(errors("--schedule zb-v --microbatches 15"), "");
  EXPECT_EQ(errors("--schedule 1f1b --microbatches 16 --latency 5"), "");
}

TEST(Usage, TheCommandLineWinsOverTheFile) {
  const TemporaryDirectory directory;
  write_file(directory.file("plan.toml"),
             "schedule = \"gpipe\"\nranks = 2\nmicrobatches = 3\nforward = [1, 2]\nformat = "
             "\"json\"\n");
  for (const char* order : {"plan --config plan.toml --schedule 1f1b --microbatches 5",
                            "plan --schedule 1f1b --microbatches 5 --config plan.toml",
                            "--config plan.toml plan --schedule 1f1b --microbatches 5"}) {
    const Result result = run_pipetrain(order, directory.path());
    ASSERT_EQ(result.code, 0) << result.err;
    const auto json = nlohmann::json::parse(result.out);
    EXPECT_EQ(json["schedule"], "1f1b");
    EXPECT_EQ(json["microbatches"], 5);
    EXPECT_EQ(json["ranks"], 2);
  }
}

TEST(Usage, TheConfigurationsThatAreShippedAreAccepted) {
  const TemporaryDirectory directory;
  const std::string configurations = std::string(PIPETRAIN_TEST_DATA) + "/../../launch/configs";
  std::vector<Refusal> cases;
  for (const auto& entry : std::filesystem::directory_iterator(configurations)) {
    cases.push_back({{"train", "--config", entry.path()}, "--data is missing"});
  }
  ASSERT_EQ(cases.size(), 4u);
  expect_all_refused(cases, directory);
}

TEST(Usage, VersionHelpAndDoctorAnswer) {
  const TemporaryDirectory directory;
  const struct {
    const char* arguments;
    std::string part;
  } cases[] = {
      {"--version", "flavour"},   {"--help", "train"},         {"train --help", "--microbatches"},
      {"plan --help", "--ranks"}, {"doctor --help", "doctor"}, {"train --version", "flavour"},
      {"doctor", "MPI"},
  };
  for (const auto& [arguments, part] : cases) {
    const Result result = run_pipetrain(arguments, directory.path());
    EXPECT_EQ(result.code, 0) << arguments;
    EXPECT_PRED2(contains, result.out, part) << arguments;
    EXPECT_EQ(result.err, "") << arguments;
  }
  EXPECT_EQ(listing(directory.path()), std::vector<std::string>{});
}

TEST(Usage, PlanWritesEveryFormat) {
  const TemporaryDirectory directory;
  const std::string plan = "plan --schedule 1f1b --ranks 2 --microbatches 3 --format ";
  const auto output = [&](const std::string& arguments) {
    const Result result = run_pipetrain(arguments, directory.path());
    EXPECT_EQ(result.code, 0) << arguments << ": " << result.err;
    EXPECT_EQ(error_lines(result), std::vector<std::string>{}) << arguments;
    return result.out;
  };
  EXPECT_PRED2(contains, output(plan + "table"), "1f1b");
  EXPECT_PRED2(contains, output(plan + "ascii"), "bubble");
  EXPECT_EQ(output(plan + "csv"), "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  EXPECT_PRED2(contains, output(plan + "csv --lowered"), "0SEND_F0");
  EXPECT_PRED2(contains, output(plan + "svg"), "</svg>");
  EXPECT_TRUE(nlohmann::json::parse(output(plan + "trace")).contains("traceEvents"));
  const auto json = nlohmann::json::parse(output(plan + "json"));
  for (const char* key :
       {"schedule", "ranks", "chunks", "microbatches", "makespan", "span", "ideal",
        "bubble_fraction", "bubble_fraction_span", "bubble_over_ideal"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["makespan"], 12);
  ASSERT_EQ(json["per_rank"].size(), 2u);
  for (const char* key :
       {"rank", "stages", "busy", "idle", "peak_chunks", "peak_activations", "weight_versions"}) {
    EXPECT_TRUE(json["per_rank"][1].contains(key)) << key;
  }
  output(plan + "json --output plan.json");
  EXPECT_EQ(nlohmann::json::parse(read_file(directory.file("plan.json"))), json);
  EXPECT_TRUE(nlohmann::json::parse(
                  run_pipetrain("plan --schedule all --format json", directory.path()).out)
                  .is_array());
}

TEST(Usage, ALimitThatNoScheduleMeetsIsExitCode3) {
  const TemporaryDirectory directory;
  const auto refused = [&](const std::string& flags, const std::vector<std::string>& parts) {
    const Result result = run_pipetrain("plan --ranks 4 --schedule " + flags, directory.path());
    expect_refused(result, 3, parts);
    EXPECT_EQ(result.err, error_lines(result)[0] + "\n") << "more than one line";
  };
  refused("1f1b --activation-limit 1",
          {"--schedule 1f1b: rank 0 holds 4 activations, above --activation-limit 1"});
  refused("all --activation-limit 0.5",
          {"auto: --activation-limit 0.5", "above --activation-limit 0.5: gpipe (rank 0 holds 8"});
  refused("1f1b --model gpt2-124m --memory-limit 0.1",
          {"above the 102.40 MiB of --memory-limit", "weights", "total"});
  refused("1f1b --model gpt2-1558m --microbatch-size 2000", {"of --device h100", "total"});
}

TEST(Usage, PlansOfCommonSizesAreMadeInEveryFormat) {
  const TemporaryDirectory directory;
  for (const std::string schedule : {"1f1b", "zb-v", "dualpipe", "all"}) {
    for (const std::string format : {"table", "json", "ascii", "csv", "svg", "trace"}) {
      if (schedule == "all" && (format == "csv" || format == "svg" || format == "trace")) {
        continue;
      }
      const std::string flags = fmt::format(
          "plan --schedule {} --ranks 2 --microbatches 4 --layers 3 --hidden 64 --heads 2 "
          "--sequence-length 32 --vocab-size 257 --format {}",
          schedule, format);
      const Result printed = run_pipetrain(flags, directory.path());
      EXPECT_EQ(printed.code, 0) << flags << printed.err;
      const Result written = run_pipetrain(flags + " --output plan", directory.path());
      EXPECT_EQ(written.code, 0) << flags << written.err;
      EXPECT_EQ(written.out, "");
      EXPECT_EQ(read_file(directory.file("plan")), printed.out) << flags;
    }
  }
}

TEST(Usage, PlanSaysWhyChunksAreNotCompared) {
  const TemporaryDirectory directory;
  const Result result = run_pipetrain(
      "plan --schedule 1f1b --ranks 4 --layers 2 --hidden 64 --heads 2 --sequence-length 32",
      directory.path());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_PRED2(contains, result.out, "interleaved is not compared: 2 layers on 4 ranks");
}

// Fault 29: the schedule that is shown differs from the one that runs.
TEST(Usage, ACsvOfPlanGivesTheSameCsv) {
  const TemporaryDirectory directory;
  for (const std::string schedule :
       {"gpipe", "1f1b", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min",
        "dualpipe", "dualpipe-v", "chimera", "pipedream", "pipedream-2bw", "auto"}) {
    for (const std::string lowered : {"", " --lowered"}) {
      const std::string flags = " --format csv" + lowered;
      const Result first = run_pipetrain(
          "plan --ranks 2 --microbatches 4 --schedule " + schedule + flags + " --output s.csv",
          directory.path());
      ASSERT_EQ(first.code, 0) << first.err;
      const Result again = run_pipetrain("plan --schedule csv:s.csv" + flags, directory.path());
      EXPECT_EQ(again.code, 0) << again.err;
      EXPECT_EQ(again.out, read_file(directory.file("s.csv"))) << schedule << lowered;
    }
  }
}

}  // namespace
}  // namespace pipetrain::test
