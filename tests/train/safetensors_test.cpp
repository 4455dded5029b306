#include "pipetrain/train/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/train/temporary.h"

namespace pipetrain {
namespace {

std::string safetensors(const std::string& header, const std::string& data) {
  const uint64_t bytes = header.size();
  return std::string(reinterpret_cast<const char*>(&bytes), 8) + header + data;
}

// A header of one tensor `a` with the given parts.
std::string entry(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return "{\"a\":{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets +
         "}}";
}

class Safetensors : public testing::Test {
 protected:
  SafetensorsFile open(const std::string& content) {
    write_file(directory_.file("x"), content);
    return SafetensorsFile(directory_.file("x"));
  }
  std::string error(const std::string& header, const std::string& data = std::string(8, '\0')) {
    return usage_error([&] { open(safetensors(header, data)); });
  }
  // But the files x and out.
  int other_files() const {
    int others = 0;
    for (const auto& file : std::filesystem::directory_iterator(directory_.path())) {
      const std::string name = file.path().filename().string();
      others += name != "x" && name != "out";
    }
    return others;
  }
  TemporaryDirectory directory_;
};

TEST_F(Safetensors, WhatIsWrittenIsReadBack) {
  const std::vector<float> a = {1.5f, -0.0f, 1e-42f, 3.14159274f, NAN, INFINITY};
  const std::vector<double> b = {1.0 / 3, -2e300};
  SafetensorsWriter writer(
      directory_.file("out"),
      {{"a \"quoted\"", "F32", {2, 3}}, {"none", "F32", {0, 4}}, {"b", "F64", {2}}});
  writer.write(std::as_bytes(std::span(a)));
  writer.write({});
  writer.write(std::as_bytes(std::span(b)));
  EXPECT_FALSE(std::filesystem::exists(directory_.file("out")));
  writer.finish();
  EXPECT_TRUE(std::filesystem::exists(directory_.file("out")));
  EXPECT_EQ(other_files(), 0);

  const SafetensorsFile file(directory_.file("out"));
  ASSERT_EQ(file.tensors().size(), 3u);
  const TensorInfo& read = *file.find("a \"quoted\"");
  EXPECT_EQ(read.shape, (std::vector<size_t>{2, 3}));
  EXPECT_EQ(std::memcmp(file.data(read).data(), a.data(), 24), 0);
  EXPECT_EQ(file.values(*file.find("b")), b);
  EXPECT_EQ(file.find("none")->elements(), 0u);
  EXPECT_EQ(file.find("c"), nullptr);
}

TEST_F(Safetensors, UnfinishedFileDoesNotReplaceTheOldOne) {
  write_file(directory_.file("out"), "old");
  {
    SafetensorsWriter writer(directory_.file("out"), {{"a", "F32", {1}}});
    EXPECT_THROW(writer.finish(), InternalError);
    EXPECT_THROW(writer.write(std::vector<std::byte>(3)), InternalError);
  }
  EXPECT_EQ(read_file(directory_.file("out")), "old");
  EXPECT_EQ(other_files(), 0);
}

TEST_F(Safetensors, HalfPrecisionIsReadExactly) {
  // 1, -2, largest, smallest subnormal, infinity; by the binary16 and bfloat16 formats
  const SafetensorsFile half =
      open(safetensors(entry("\"F16\"", "[5]", "[0,10]"),
                       std::string("\x00\x3c\x00\xc0\xff\x7b\x01\x00\x00\x7c", 10)));
  EXPECT_EQ(half.values(half.tensors()[0]),
            (std::vector<double>{1, -2, 65504, std::ldexp(1, -24), INFINITY}));
  const SafetensorsFile brain =
      open(safetensors(entry("\"BF16\"", "[2]", "[0,4]"), std::string("\x80\x3f\x49\xc0", 4)));
  EXPECT_EQ(brain.values(brain.tensors()[0]), (std::vector<double>{1, -3.140625}));
}

TEST_F(Safetensors, OtherTypesMayBeThereButNotRead) {
  const SafetensorsFile file =
      open(safetensors(entry("\"BOOL\"", "[2]", "[0,2]"), std::string(2, '\1')));
  EXPECT_FALSE(SafetensorsFile::readable(file.tensors()[0]));
  EXPECT_PRED2(contains, usage_error([&] { file.values(file.tensors()[0]); }), "dtype BOOL");
}

TEST_F(Safetensors, MetadataAndPaddingAreAllowed) {
  const SafetensorsFile file =
      open(safetensors("{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"U8\",\"shape\":[],"
                       "\"data_offsets\":[0,1]}}  ",
                       "x"));
  EXPECT_EQ(file.tensors().size(), 1u);
  EXPECT_EQ(file.tensors()[0].elements(), 1u);
}

TEST_F(Safetensors, MalformedHeadersAreRefused) {
  const std::string good = entry("\"F32\"", "[2]", "[0,8]");
  open(safetensors(good, std::string(8, '\0')));
  const auto whole_file = [&](const std::string& content) {
    return usage_error([&] { open(content); });
  };
  EXPECT_PRED2(contains, whole_file("1234567"), "7 bytes are too short");
  EXPECT_PRED2(contains, whole_file(std::string(8, '\xff') + good),
               "should have 18446744073709551615 bytes");
  EXPECT_PRED2(contains, whole_file(safetensors(good, "").substr(0, 30)), "truncated");

  const std::vector<std::pair<std::string, std::string>> headers = {
      {"[]", "not a JSON object"},
      {"{\"a\":", "not valid JSON"},
      {"{\"a\":" + std::string(100000, '['), "nested too deeply"},
      {"{\"a\":3}", "dtype, shape and data_offsets are needed"},
      {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", "are needed"},
      {entry("\"F31\"", "[2]", "[0,8]"), "dtype \"F31\" is unknown"},
      {entry("32", "[2]", "[0,8]"), "dtype 32 is unknown"},
      {entry("\"F32\"", "2", "[0,8]"), "shape is not"},
      {entry("\"F32\"", "[-2]", "[0,8]"), "shape is not"},
      {entry("\"F32\"", "[2.0]", "[0,8]"), "shape is not"},
      {entry("\"F32\"", "[2]", "[0]"), "data_offsets is not a pair"},
      {entry("\"F32\"", "[2]", "[8,0]"), "do not lie in the 8 bytes"},
      {entry("\"F32\"", "[4]", "[0,16]"), "do not lie in the 8 bytes"},
      {entry("\"F32\"", "[3]", "[0,8]"), "need 12 bytes"},
      {entry("\"F32\"", "[4294967296,4294967296]", "[0,8]"), "overflows"},
  };
  for (const auto& [header, message] : headers) {
    EXPECT_PRED2(contains, error(header), message);
  }
}

TEST_F(Safetensors, TensorsCoverTheDataOnce) {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + a +
           "},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" + b + "}}";
  };
  open(safetensors(two("[4,8]", "[0,4]"), std::string(8, '\0')));
  EXPECT_PRED2(contains, error(two("[0,4]", "[0,4]")), "overlaps");
  EXPECT_PRED2(contains, error(two("[0,4]", "[2,6]")), "overlaps");
  EXPECT_PRED2(contains, error(two("[0,4]", "[8,12]"), std::string(12, '\0')), "hole");
  EXPECT_PRED2(contains, error(two("[0,4]", "[4,8]"), std::string(9, '\0')), "the file at byte 9");
}

TEST_F(Safetensors, NamesThatStandTwiceAreRefused) {
  const std::string a = "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}";
  EXPECT_PRED2(contains, error("{" + a + "," + a + "}"), "'a' stands twice");
}

TEST_F(Safetensors, UnwritablePathIsAnError) {
  EXPECT_THROW(SafetensorsWriter("/dev/null/x", {}), Error);
}

}  // namespace
}  // namespace pipetrain
