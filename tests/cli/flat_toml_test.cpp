#include "cli/flat_toml.h"

#include <gtest/gtest.h>

#include "train/temporary.h"

namespace pipetrain {
namespace {

using Kind = TomlValue::Kind;

TomlEntry only(const std::string& text) {
  const std::vector<TomlEntry> entries = parse_flat_toml(text, "file");
  EXPECT_EQ(entries.size(), 1u) << text;
  return entries.empty() ? TomlEntry{} : entries.front();
}

std::string refused(const std::string& text) {
  return usage_error([&] { parse_flat_toml(text, "file"); });
}

TEST(FlatToml, EveryKindOfValueKeepsItsText) {
  const struct {
    const char* written;
    Kind kind;
    const char* text;
  } cases[] = {
      {"\"a b\"", Kind::text, "a b"},
      {"'a\\b'", Kind::text, "a\\b"},
      {"\"\"", Kind::text, ""},
      {R"("a\tb\"\\\u00e9\U0001f600")", Kind::text, "a\tb\"\\\u00e9\U0001f600"},
      {"\"not # a comment\"", Kind::text, "not # a comment"},
      {"0", Kind::integer, "0"},
      {"-17", Kind::integer, "-17"},
      {"+17", Kind::integer, "17"},
      {"1_000_000", Kind::integer, "1000000"},
      {"3.5", Kind::number, "3.5"},
      {"-0.1", Kind::number, "-0.1"},
      {"6e-4", Kind::number, "6e-4"},
      {"6.25E+4", Kind::number, "6.25e+4"},
      {"inf", Kind::number, "inf"},
      {"-nan", Kind::number, "-nan"},
      {"true", Kind::boolean, "true"},
      {"false", Kind::boolean, "false"},
  };
  for (const auto& [written, kind, text] : cases) {
    for (const char* end : {"", "\n", "  # comment\n", "\r\n"}) {
      const TomlEntry entry = only("key = " + std::string(written) + end);
      EXPECT_EQ(entry.key, "key") << written;
      EXPECT_FALSE(entry.array) << written;
      ASSERT_EQ(entry.values.size(), 1u) << written;
      EXPECT_EQ(entry.values[0].kind, kind) << written;
      EXPECT_EQ(entry.values[0].text, text) << written;
    }
  }
}

TEST(FlatToml, ArraysMayHaveLinesCommentsAndALastComma) {
  const TomlEntry entry = only("data = [ # files\n  \"a\", 'b',\n\n  \"c]\" , # last\n]\n");
  EXPECT_TRUE(entry.array);
  ASSERT_EQ(entry.values.size(), 3u);
  EXPECT_EQ(entry.values[2].text, "c]");
  EXPECT_TRUE(only("x = []").values.empty());
}

TEST(FlatToml, EntriesKnowTheirLine) {
  const auto entries = parse_flat_toml("# first\n\na = 1\nb = [1,\n2]\n\"c\" = 3", "file");
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].line, 3);
  EXPECT_EQ(entries[1].line, 4);
  EXPECT_EQ(entries[2].line, 6);
  EXPECT_EQ(entries[2].key, "c");
}

TEST(FlatToml, WhatIsNoFlatFileIsRefusedByItsLine) {
  for (const char* line : {"[train]",
                           "[[train]]",
                           "train.steps = 1",
                           "steps",
                           "steps =",
                           "steps: 1",
                           "= 1",
                           "steps 1",
                           "steps = 1 2",
                           "steps = abc",
                           "steps = 010",
                           "steps = 0x8",
                           "steps = 1__0",
                           "steps = 1_",
                           "steps = _1",
                           "steps = .5",
                           "steps = 5.",
                           "steps = 1e",
                           "steps = --1",
                           "steps = 1979-05-27",
                           "steps = {a = 1}",
                           "steps = [[1]]",
                           "steps = [1 2]",
                           "steps = [1",
                           "steps = \"a",
                           "steps = \"a\nb\"",
                           "steps = \"\"\"a\"\"\"",
                           "steps = \"\\x\"",
                           "steps = \"\\ud800\"",
                           "steps = \"\\u12\"",
                           "steps = True",
                           "\x01\x02",
                           "; comment"}) {
    EXPECT_PRED2(contains, refused("# one\n" + std::string(line)), "file: line 2: ") << line;
  }
  EXPECT_PRED2(contains, refused("a = 1\nb = 2\na = 3\n"), "file: line 3: key 'a' is given twice");
}

}  // namespace
}  // namespace pipetrain
