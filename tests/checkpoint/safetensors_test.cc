// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/check.h"
#include "checkpoint/safetensors_writer.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using testing::data_path;
using ::testing::ElementsAre;
using testing::entry;
using testing::error_of;
using ::testing::HasSubstr;
using testing::little_endian;
using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_bytes;

const TensorInfo& must_find(const SafetensorsFile& file, const char* name) {
  const TensorInfo* info = file.find(name);
  CHECK(info != nullptr, name);
  return *info;
}

// single.safetensors is written by the Python package (make_data.py): the i-th pattern of its
// two-byte tensors is 64 i + i % 64.
TEST(SafetensorsFile, ReadsAFileOfThePythonPackage) {
  const SafetensorsFile file(data_path("single.safetensors"));
  EXPECT_THAT(file.metadata(),
              ElementsAre(std::pair("format", "pt"), std::pair("note", "caf\u00e9")));
  EXPECT_EQ(file.tensors().size(), 8u);
  for (const auto& [name, dtype, shape] : {std::tuple{"bf16", DType::kBF16, Shape{32, 32}},
                                           std::tuple{"f16", DType::kF16, Shape{2, 512}}}) {
    const TensorInfo& info = must_find(file, name);
    EXPECT_EQ(info.dtype, dtype);
    EXPECT_EQ(info.shape, shape);
    std::vector<uint16_t> bits(1024);
    file.read(info, 0, 1024, bits.data());
    std::vector<float> wide(1024);
    file.read_f32(info, 0, 1024, wide.data());
    for (uint16_t i = 0; i < 1024; ++i) {
      const auto wanted = static_cast<uint16_t>(64 * i + i % 64);
      ASSERT_EQ(bits[i], wanted);
      const float value = dtype == DType::kF16 ? f16_to_float(wanted) : to_float(Bf16{wanted});
      ASSERT_EQ(std::memcmp(&wide[i], &value, sizeof(value)), 0);
    }
  }
  std::vector<float> counting(5);
  file.read_f32(must_find(file, "f32.counting"), 7, 5, counting.data());
  EXPECT_THAT(counting, ElementsAre(0.875f, 1.0f, 1.125f, 1.25f, 1.375f));
  float scalar = 0;
  file.read_f32(must_find(file, "scalar"), 0, 1, &scalar);
  EXPECT_EQ(scalar, -2.5f);
  EXPECT_EQ(must_find(file, "empty").shape, (Shape{0, 7}));
  file.read_f32(must_find(file, "empty"), 0, 0, nullptr);
  EXPECT_NE(file.find("na\u00efve \"quoted\"\n"), nullptr);
  EXPECT_EQ(file.find("f32"), nullptr);
}

TEST(SafetensorsFile, ListsWhatItCannotReadAndRefusesToReadIt) {
  const SafetensorsFile file(data_path("single.safetensors"));
  int64_t out[5];
  const TensorInfo& ids = must_find(file, "i64.ids");
  EXPECT_FALSE(ids.readable);
  EXPECT_EQ(ids.shape_text(), "[5]");
  EXPECT_THAT(error_of([&] { file.read(ids, 0, 5, out); }),
              HasSubstr("'i64.ids': I64 [5] cannot be read"));
  const TensorInfo& six = must_find(file, "six.axes");
  EXPECT_FALSE(six.readable);
  EXPECT_THAT(error_of([&] { file.read_f32(six, 0, 2, reinterpret_cast<float*>(out)); }),
              HasSubstr("'six.axes': F32 [1, 1, 2, 1, 1, 1] cannot be read"));
}

TEST(SafetensorsFile, TensorsComeInTheOrderOfTheirBytes) {
  const TempDir dir;
  write_bytes(dir.file("a"), safetensors_bytes("{" + entry("late", "F32", "[1]", 4, 8) + "," +
                                                   entry("early", "F32", "[1]", 0, 4) + "}",
                                               "abcdefgh"));
  const SafetensorsFile file(dir.file("a"));
  EXPECT_EQ(file.tensors()[0].name, "early");
  EXPECT_EQ(file.tensors()[1].name, "late");
}

TEST(SafetensorsFile, ReadingAcceptsWhatTheFormatAllows) {
  const TempDir dir;
  // Padding after the JSON, a header without tensors, unknown element types that fill their bytes
  // somehow.
  write_bytes(dir.file("a"), safetensors_bytes("{}    ", ""));
  EXPECT_TRUE(SafetensorsFile(dir.file("a")).tensors().empty());
  write_bytes(dir.file("b"), safetensors_bytes("{" + entry("x", "Q3_K", "[5]", 0, 3) + "," +
                                                   entry("y", "F4", "[4]", 3, 5) + "}",
                                               "abcde"));
  const SafetensorsFile file(dir.file("b"));
  EXPECT_EQ(file.tensors()[0].dtype_name, "Q3_K");
  EXPECT_FALSE(file.tensors()[1].readable);
}

struct HostileCase {
  const char* name;
  std::string bytes;
  const char* message;
};
void PrintTo(const HostileCase& hostile, std::ostream* out) { *out << hostile.name; }

class HostileFile : public ::testing::TestWithParam<HostileCase> {};

TEST_P(HostileFile, IsRefusedWithItsReason) {
  const TempDir dir;
  const std::string path = dir.file("hostile.safetensors");
  write_bytes(path, GetParam().bytes);
  const std::string message = error_of([&] { SafetensorsFile file(path); });
  EXPECT_THAT(message, HasSubstr(GetParam().message));
  EXPECT_THAT(message, HasSubstr(path));
}

std::string with_header(const std::string& header) { return safetensors_bytes(header, "12345678"); }
std::string with_entries(const std::string& entries) { return with_header("{" + entries + "}"); }

INSTANTIATE_TEST_SUITE_P(
    Cases, HostileFile,
    ::testing::Values(
        HostileCase{"empty_file", "", "too few"}, HostileCase{"seven_bytes", "1234567", "too few"},
        HostileCase{"length_zero", little_endian(0), "does not start with '{'"},
        HostileCase{"length_beyond_the_file", little_endian(100) + "{}", "truncated?"},
        HostileCase{"length_beyond_the_cap", little_endian(100'000'001) + "{}",
                    "at most 100000000"},
        HostileCase{"length_of_all_ones", little_endian(~uint64_t{0}) + "{}", "at most 100000000"},
        HostileCase{"length_negative_as_signed", little_endian(uint64_t{1} << 63) + "{}",
                    "at most 100000000"},
        HostileCase{"a_git_lfs_pointer",
                    "version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
                    "a pointer of git-lfs"},
        HostileCase{"header_is_a_list", with_header("[]"), "does not start with '{'"},
        HostileCase{"header_cut_short", with_header("{\"a\":{\"dtype\":\"F32\""), "ends early"},
        HostileCase{"header_and_more", with_header("{}{}"), "after the end"},
        HostileCase{"header_not_utf8", with_header("{\"\xff\":1}"), "not valid UTF-8"},
        HostileCase{"header_with_nul", with_header(std::string("{\"a\0\":1}", 8)),
                    "control character"},
        HostileCase{"deep_nesting", with_header("{\"a\":" + std::string(100'000, '[')), "JSON"},
        HostileCase{"deep_metadata",
                    with_header("{\"__metadata__\":{\"a\":" + std::string(1000, '{')), "JSON"},
        HostileCase{
            "duplicate_tensor",
            with_entries(entry("w", "F32", "[1]", 0, 4) + "," + entry("w", "F32", "[1]", 4, 8)),
            "\"w\" appears twice"},
        HostileCase{"duplicate_metadata", with_header("{\"__metadata__\":{},\"__metadata__\":{}}"),
                    "appears twice"},
        HostileCase{"duplicate_dtype", with_header("{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F16\"}}"),
                    "appears twice"},
        HostileCase{"metadata_value_not_text", with_header("{\"__metadata__\":{\"a\":1}}"),
                    "wanted '\"'"},
        HostileCase{"tensor_not_an_object", with_header("{\"w\":[1]}"), "wanted '{'"},
        HostileCase{"unknown_key", with_header("{\"w\":{\"dtyp\":\"F32\"}}"),
                    "unknown key \"dtyp\""},
        HostileCase{"no_dtype", with_header("{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}"),
                    "wants dtype, shape and data_offsets"},
        HostileCase{"no_offsets", with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}"),
                    "wants dtype, shape and data_offsets"},
        HostileCase{"one_offset",
                    with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}"),
                    "two numbers"},
        HostileCase{
            "three_offsets",
            with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}"),
            "two numbers"},
        HostileCase{"offset_negative", with_entries(entry("w", "F32", "[2]", -8, 0)),
                    "not negative"},
        HostileCase{
            "offset_fraction",
            with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8.0]}}"),
            "integer of 64 bits"},
        HostileCase{"offset_overflows",
                    with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,"
                                "18446744073709551624]}}"),
                    "integer of 64 bits"},
        HostileCase{"offset_near_the_top",
                    with_entries(entry("w", "F32", "[2]", INT64_MAX - 8, INT64_MAX)),
                    "in 8 bytes of data"},
        HostileCase{"offsets_reversed", with_entries(entry("w", "F32", "[2]", 8, 0)),
                    "in 8 bytes of data"},
        HostileCase{"offset_beyond_the_data", with_entries(entry("w", "F32", "[4]", 0, 16)),
                    "truncated?"},
        HostileCase{
            "overlap",
            with_entries(entry("a", "F32", "[2]", 0, 8) + "," + entry("b", "F32", "[1]", 4, 8)),
            "they overlap"},
        HostileCase{
            "same_bytes_twice",
            with_entries(entry("a", "F32", "[2]", 0, 8) + "," + entry("b", "F32", "[2]", 0, 8)),
            "they overlap"},
        HostileCase{"hole_before", with_entries(entry("w", "F32", "[1]", 4, 8)), "a hole"},
        HostileCase{
            "hole_between",
            with_entries(entry("a", "F16", "[1]", 0, 2) + "," + entry("b", "F32", "[1]", 4, 8)),
            "a hole"},
        HostileCase{"trailing_bytes", with_entries(entry("w", "F32", "[1]", 0, 4)),
                    "4 bytes after the last tensor"},
        HostileCase{"bytes_without_tensors", with_header("{}"), "8 bytes after the last tensor"},
        HostileCase{"shape_too_small", with_entries(entry("w", "F32", "[1]", 0, 8)),
                    "does not fill"},
        HostileCase{"shape_too_large", with_entries(entry("w", "F32", "[3]", 0, 8)),
                    "does not fill"},
        HostileCase{"scalar_of_eight_bytes", with_entries(entry("w", "F32", "[]", 0, 8)),
                    "does not fill"},
        HostileCase{"wrong_dtype", with_entries(entry("w", "F16", "[2]", 0, 8)),
                    "F16 [2] does not fill"},
        HostileCase{"shape_negative", with_entries(entry("w", "F32", "[-2]", 0, 8)),
                    "not negative"},
        HostileCase{"shape_not_a_list",
                    with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}"),
                    "wanted '['"},
        HostileCase{"shape_product_overflows",
                    with_entries(entry("w", "F32", "[4294967296,4294967296,4294967296]", 0, 8)),
                    "64 bits can count"},
        HostileCase{
            "shape_product_wraps_to_two",
            with_entries(entry("w", "F32", "[9223372036854775807,2,9223372036854775807]", 0, 8)),
            "64 bits can count"},
        HostileCase{"shape_bytes_overflow",
                    with_entries(entry("w", "F32", "[4611686018427387906]", 0, 8)),
                    "does not fill"},
        HostileCase{"overflow_behind_a_zero",
                    with_entries(entry("w", "F32", "[0,4294967296,4294967296]", 0, 0)),
                    "64 bits can count"},
        HostileCase{
            "shape_of_nested_lists",
            with_header("{\"w\":{\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]}}"),
            "wanted a number"},
        HostileCase{"half_a_byte", with_entries(entry("w", "F4", "[3]", 0, 8)), "does not fill"}),
    [](const auto& info) { return info.param.name; });

TEST(SafetensorsFile, MissingFileAndFolderAreNamed) {
  const TempDir dir;
  EXPECT_THAT(error_of([&] { SafetensorsFile file(dir.file("none")); }), HasSubstr("none: open"));
  EXPECT_THAT(error_of([&] { SafetensorsFile file(dir.path()); }), HasSubstr("not a regular file"));
}

TEST(SafetensorsFile, FileThatShrinksWhileItIsReadIsAnError) {
  const TempDir dir;
  write_bytes(dir.file("a"), with_entries(entry("w", "F32", "[2]", 0, 8)));
  const SafetensorsFile file(dir.file("a"));
  ASSERT_EQ(::truncate(dir.file("a").c_str(), 20), 0);
  float out[2];
  EXPECT_THAT(error_of([&] { file.read(file.tensors()[0], 0, 2, out); }),
              HasSubstr("did it change"));
}

int64_t resident_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") {
      int64_t kib = 0;
      status >> kib;
      return kib;
    }
  }
  return -1;
}

// A sparse file of 256 MiB, read in slices of 1 MiB: memory must not follow the file.
TEST(SafetensorsFile, ReadingDoesNotGrowWithTheFile) {
  const TempDir dir;
  constexpr int64_t kElements = int64_t{1} << 27;
  const std::string header =
      "{" + entry("w", "BF16", "[" + std::to_string(kElements) + "]", 0, 2 * kElements) + "}";
  write_bytes(dir.file("a"), safetensors_bytes(header, ""));
  ASSERT_EQ(
      ::truncate(dir.file("a").c_str(), static_cast<off_t>(8 + header.size()) + 2 * kElements), 0);
  const SafetensorsFile file(dir.file("a"));
  const int64_t before = resident_kib();
  std::vector<uint16_t> slice(1 << 19);
  for (int64_t at = 0; at < kElements; at += 1 << 19)
    file.read(file.tensors()[0], at, 1 << 19, slice.data());
  EXPECT_LT(resident_kib() - before, 16 << 10);
}

}  // namespace
}  // namespace strata
