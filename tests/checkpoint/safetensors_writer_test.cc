// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>

#include "checkpoint/safetensors.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using ::testing::IsEmpty;
using testing::read_bytes;
using testing::safetensors_bytes;
using testing::TempDir;

TEST(SafetensorsWriter, BytesAreExactlyTheFormat) {
  const TempDir dir;
  SafetensorsWriter writer(dir.file("a"),
                           {{"half", DType::kBF16, {3}}, {"full", DType::kF32, {1, 2}}},
                           {{"format", "pt"}});
  ASSERT_EQ(writer.tensors()[0].name, "full");  // four-byte elements first: all are aligned
  const float full[] = {1.0f, -2.0f};
  writer.append_f32("full", full);
  const float half[] = {0.5f, 1.0f, 1.5f};
  writer.append_f32("half", std::span(half).first(1));
  writer.append_f32("half", std::span(half).subspan(1));
  writer.commit();
  std::string header =
      R"({"__metadata__":{"format":"pt"},"full":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
      R"("half":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}})";
  header.append((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(
      read_bytes(dir.file("a")),
      safetensors_bytes(header, std::string("\0\0\x80\x3f\0\0\0\xc0\0\x3f\x80\x3f\xc0\x3f", 14)));
}

TEST(SafetensorsWriter, EveryPatternOfBothNarrowTypesSurvivesF32) {
  const TempDir dir;
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<uint16_t> bits(65536);
    std::iota(bits.begin(), bits.end(), uint16_t{0});
    SafetensorsWriter first(dir.file("first"), {{"w", dtype, {65536}}});
    first.append("w", std::as_bytes(std::span(bits)));
    first.commit();
    const SafetensorsFile in(dir.file("first"));
    std::vector<float> wide(65536);
    in.read_f32(in.tensors()[0], 0, 65536, wide.data());
    SafetensorsWriter second(dir.file("second"), {{"w", dtype, {65536}}});
    second.append_f32("w", wide);
    second.commit();
    EXPECT_EQ(read_bytes(dir.file("first")), read_bytes(dir.file("second"))) << dtype_name(dtype);
  }
}

TEST(SafetensorsWriter, F32KeepsEveryBitThatItIsGiven) {
  const TempDir dir;
  std::vector<float> values;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 65'521) {
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  const auto count = static_cast<int64_t>(values.size());
  SafetensorsWriter writer(dir.file("a"), {{"w", DType::kF32, {count}}});
  writer.append_f32("w", values);
  writer.commit();
  const SafetensorsFile file(dir.file("a"));
  std::vector<uint32_t> bits(values.size());
  file.read(file.tensors()[0], 0, count, bits.data());
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bits[i], std::bit_cast<uint32_t>(values[i]));
}

TEST(Narrow, IsTheCommonRoundingForNumbers) {
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 9'973) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (value != value) continue;
    ASSERT_EQ(narrow_to_16_bits(value, DType::kBF16), to_bf16(value).bits);
    ASSERT_EQ(narrow_to_16_bits(value, DType::kF16), float_to_f16(value));
  }
}

TEST(Narrow, NanStaysNanWhenItsPayloadIsLost) {
  EXPECT_EQ(narrow_to_16_bits(std::bit_cast<float>(0x7f800001u), DType::kBF16), 0x7fc0);
  EXPECT_EQ(narrow_to_16_bits(std::bit_cast<float>(0xff800001u), DType::kF16), 0xfe00);
}

TEST(SafetensorsWriter, ViewsWithRowsApartAreDense) {
  const TempDir dir;
  const float values[] = {0, 1, 2, 3, 4, 5, 6, 7};
  TensorView all(const_cast<float*>(values), DType::kF32, {2, 4});
  SafetensorsWriter writer(dir.file("a"), {{"w", DType::kF32, {2, 2}}});
  writer.append_view("w", all.slice_cols(1, 3));
  writer.commit();
  const SafetensorsFile file(dir.file("a"));
  std::vector<float> out(4);
  file.read_f32(file.tensors()[0], 0, 4, out.data());
  EXPECT_THAT(out, ::testing::ElementsAre(1, 2, 5, 6));
}

TEST(SafetensorsWriter, TensorsWithoutElementsNeedNoData) {
  const TempDir dir;
  SafetensorsWriter writer(dir.file("a"),
                           {{"none", DType::kF32, {0, 3}}, {"also", DType::kF16, {0}}});
  writer.append_f32("none", {});
  writer.commit();
  EXPECT_EQ(SafetensorsFile(dir.file("a")).tensors().size(), 2u);
  SafetensorsWriter(dir.file("b"), {}).commit();
  EXPECT_TRUE(SafetensorsFile(dir.file("b")).tensors().empty());
}

TEST(SafetensorsWriter, AbandonedFileLeavesNothing) {
  const TempDir dir;
  {
    SafetensorsWriter writer(dir.file("a"), {{"w", DType::kF32, {4}}});
  }
  EXPECT_THAT(dir.names(), IsEmpty());
}

TEST(SafetensorsWriterDeathTest, MisuseIsABug) {
  const TempDir dir;
  const float one[] = {1};
  SafetensorsWriter writer(dir.file("a"), {{"w", DType::kF32, {2}}, {"v", DType::kF32, {1}}});
  EXPECT_DEATH(writer.append_f32("v", one), "turn");
  EXPECT_DEATH(writer.commit(), "data is missing");
  writer.append_f32("w", one);
  const float two[] = {1, 2};
  EXPECT_DEATH(writer.append_f32("w", two), "CHECK");
  EXPECT_DEATH(SafetensorsWriter(dir.file("b"), {{"w", DType::kF32, {1}}, {"w", DType::kF32, {1}}}),
               "declared twice");
}

}  // namespace
}  // namespace strata
