// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/block_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using testing::entry;
using testing::error_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_bytes;

// torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float() of torch 2.15.
constexpr float kTable[127] = {
    0,        0.001953125, 0.00390625, 0.005859375, 0.0078125, 0.009765625, 0.01171875, 0.013671875,
    0.015625, 0.017578125, 0.01953125, 0.021484375, 0.0234375, 0.025390625, 0.02734375, 0.029296875,
    0.03125,  0.03515625,  0.0390625,  0.04296875,  0.046875,  0.05078125,  0.0546875,  0.05859375,
    0.0625,   0.0703125,   0.078125,   0.0859375,   0.09375,   0.1015625,   0.109375,   0.1171875,
    0.125,    0.140625,    0.15625,    0.171875,    0.1875,    0.203125,    0.21875,    0.234375,
    0.25,     0.28125,     0.3125,     0.34375,     0.375,     0.40625,     0.4375,     0.46875,
    0.5,      0.5625,      0.625,      0.6875,      0.75,      0.8125,      0.875,      0.9375,
    1,        1.125,       1.25,       1.375,       1.5,       1.625,       1.75,       1.875,
    2,        2.25,        2.5,        2.75,        3,         3.25,        3.5,        3.75,
    4,        4.5,         5,          5.5,         6,         6.5,         7,          7.5,
    8,        9,           10,         11,          12,        13,          14,         15,
    16,       18,          20,         22,          24,        26,          28,         30,
    32,       36,          40,         44,          48,        52,          56,         60,
    64,       72,          80,         88,          96,        104,         112,        120,
    128,      144,         160,        176,         192,       208,         224,        240,
    256,      288,         320,        352,         384,       416,         448.0};

TEST(BlockScales, EveryByteIsWhatTorchReads) {
  for (int bits = 0; bits < 127; ++bits) {
    EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(bits)), kTable[bits]) << bits;
    EXPECT_EQ(e4m3_to_float(static_cast<uint8_t>(bits + 128)), -kTable[bits]) << bits;
  }
  EXPECT_TRUE(std::signbit(e4m3_to_float(0x80)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
}

std::string shape_of(int64_t rows, int64_t cols) {
  return "[" + std::to_string(rows) + "," + std::to_string(cols) + "]";
}

// A checkpoint of one weight, whose byte at i is i % 127, with scales 1, 2, 3, ...
struct Quantized {
  Quantized(int64_t rows, int64_t cols, int64_t scale_rows, int64_t scale_cols) {
    std::string data;
    for (int64_t i = 0; i < rows * cols; ++i) data += static_cast<char>(i % 127);
    const auto end = static_cast<int64_t>(data.size());
    for (int64_t i = 0; i < scale_rows * scale_cols; ++i) {
      const auto scale = static_cast<float>(i + 1);
      data.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
    }
    const auto all = static_cast<int64_t>(data.size());
    write_bytes(
        dir.file("model.safetensors"),
        safetensors_bytes(
            "{" + entry("w", "F8_E4M3", shape_of(rows, cols), 0, end) + "," +
                entry("w_scale_inv", "F32", shape_of(scale_rows, scale_cols), end, all) + "}",
            data));
  }
  TempDir dir;
};

TEST(BlockScales, BlocksOfEverySize) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                   {128, 128},
                                   {129, 127},
                                   {200, 300},
                                   {3, 513},
                                   {257, 5}}) {
    SCOPED_TRACE(shape_of(rows, cols));
    const int64_t scale_cols = (cols + 127) / 128;
    const Quantized made(rows, cols, (rows + 127) / 128, scale_cols);
    const CheckpointDir checkpoint(made.dir.path());
    ASSERT_EQ(checkpoint.tensors().size(), 1u) << "the scales are no tensor of their own";
    const CheckpointTensor& tensor = *checkpoint.find("w");
    EXPECT_TRUE(tensor.info.readable && tensor.info.dtype == DType::kF32);
    EXPECT_EQ(tensor.info.shape, (Shape{rows, cols}));
    EXPECT_EQ(checkpoint.layout().entries[0].tensor.dtype, DType::kBF16);
    const int64_t count = rows * cols;
    std::vector<float> values(static_cast<size_t>(count));
    // In slices that begin and end inside rows.
    for (int64_t at = 0; at < count; at += 977) {
      checkpoint.read_f32(tensor, at, std::min<int64_t>(977, count - at), values.data() + at);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t block = i / cols / 128 * scale_cols + i % cols / 128;
      const float want = kTable[i % 127] * static_cast<float>(block + 1);
      ASSERT_EQ(values[static_cast<size_t>(i)], want) << i;
    }
  }
}

TEST(BlockScales, ScalesOfAWrongShapeAreErrors) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 3}, {2, 2}, {3, 2}, {6, 1}, {0, 0}, {200, 300}}) {
    const Quantized made(200, 300, rows, cols);
    const std::string fault = error_of([&] { CheckpointDir checkpoint(made.dir.path()); });
    EXPECT_THAT(fault, HasSubstr("w_scale_inv")) << shape_of(rows, cols);
    EXPECT_THAT(fault, HasSubstr("[2, 3]"));
  }
}

TEST(BlockScales, BlocksMayBeLargerThanEveryWeight) {
  TensorInfo weight, scale;
  weight.dims = {2, 4, 8};
  weight.dtype_name = "F8_E4M3";
  scale.dims = {2, 1, 1};
  scale.dtype_name = "F8_E8M0";
  BlockFormat format = *block_format(weight);
  format.block_rows = format.block_cols = INT64_MAX;
  EXPECT_EQ(fit_format(weight, scale, format), "");
}

TEST(BlockScales, WithoutScalesItIsNotReadable) {
  TempDir dir;
  write_bytes(dir.file("model.safetensors"),
              safetensors_bytes("{" + entry("w", "F8_E4M3", "[2,2]", 0, 4) + "}", "abcd"));
  const CheckpointDir checkpoint(dir.path());
  EXPECT_FALSE(checkpoint.find("w")->info.readable);
  EXPECT_TRUE(checkpoint.layout().entries.empty());
}

TEST(BlockScales, ScalesOfIntegersAreErrors) {
  TempDir dir;
  write_bytes(dir.file("model.safetensors"),
              safetensors_bytes("{" + entry("w", "F8_E4M3", "[2,2]", 0, 4) + "," +
                                    entry("w_scale_inv", "I32", "[1,1]", 4, 8) + "}",
                                "abcdefgh"));
  EXPECT_THAT(error_of([&] { CheckpointDir checkpoint(dir.path()); }), HasSubstr("I32"));
}

// OCP Microscaling Formats 1.0, tables 5 and 7; the first also as torch 2.15 reads float8_e8m0fnu.
TEST(BlockScales, PowersOfTwoAndFourBits) {
  EXPECT_EQ(e8m0_to_float(0), std::ldexp(1.0f, -127));
  EXPECT_EQ(e8m0_to_float(1), std::ldexp(1.0f, -126));
  EXPECT_EQ(e8m0_to_float(127), 1.0f);
  EXPECT_EQ(e8m0_to_float(130), 8.0f);
  EXPECT_EQ(e8m0_to_float(254), std::ldexp(1.0f, 127));
  EXPECT_TRUE(std::isnan(e8m0_to_float(255)));
  constexpr float kWant[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  for (int bits = 0; bits < 8; ++bits) {
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(bits)), kWant[bits]);
    EXPECT_EQ(e2m1_to_float(static_cast<uint8_t>(bits + 8)), -kWant[bits]);
  }
  EXPECT_TRUE(std::signbit(e2m1_to_float(8)));
}

// Two experts of [3, 70]: bytes of two elements, the first in the low bits; scales "w.scale".
TEST(BlockScales, FourBitsInBlocksOf32) {
  constexpr int64_t kRows = 6, kCols = 70, kBlocks = 3;
  for (const char* const dtype : {"I8", "U8", "F4"}) {
    SCOPED_TRACE(dtype);
    std::string data;
    for (int64_t i = 0; i < kRows * kCols / 2; ++i) data += static_cast<char>(i * 37 % 256);
    const auto end = static_cast<int64_t>(data.size());
    for (int64_t i = 0; i < kRows * kBlocks; ++i) data += static_cast<char>(120 + i);
    const std::string shape = std::string(dtype) == "F4" ? "[2,3,70]" : "[2,3,35]";
    TempDir dir;
    write_bytes(dir.file("model.safetensors"),
                safetensors_bytes(
                    "{" + entry("w.weight", dtype, shape, 0, end) + "," +
                        entry("w.scale", "F8_E8M0", "[2,3,3]", end, end + kRows * kBlocks) + "}",
                    data));
    const CheckpointDir checkpoint(dir.path());
    ASSERT_EQ(checkpoint.tensors().size(), 1u);
    const CheckpointTensor& tensor = *checkpoint.find("w.weight");
    EXPECT_EQ(tensor.info.shape, (Shape{2, 3, kCols}));
    EXPECT_EQ(checkpoint.layout().entries[0].tensor.shape, (Shape{2, 3, kCols}));
    std::vector<float> values(kRows * kCols);
    // In slices that begin and end inside bytes.
    for (int64_t at = 0; at < kRows * kCols; at += 33) {
      checkpoint.read_f32(tensor, at, std::min<int64_t>(33, kRows * kCols - at),
                          values.data() + at);
    }
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      const int byte = static_cast<int>(i / 2 * 37 % 256);
      const float scale =
          std::ldexp(1.0f, static_cast<int>(120 + i / kCols * kBlocks + i % kCols / 32) - 127);
      const float want = e2m1_to_float(static_cast<uint8_t>(i % 2 == 0 ? byte : byte >> 4)) * scale;
      ASSERT_EQ(values[static_cast<size_t>(i)], want) << i;
    }
  }
}

TEST(BlockScales, PowersOfTwoForEightBits) {
  TempDir dir;
  write_bytes(dir.file("model.safetensors"),
              safetensors_bytes("{" + entry("w.weight", "F8_E4M3", "[1,130]", 0, 130) + "," +
                                    entry("w.scale", "F8_E8M0", "[1,2]", 130, 132) + "}",
                                std::string(130, '\x38') + "\x7d\x80"));
  const CheckpointDir checkpoint(dir.path());
  std::vector<float> values(130);
  checkpoint.read_f32(*checkpoint.find("w.weight"), 0, 130, values.data());
  EXPECT_EQ(values[0], 0.25f);
  EXPECT_EQ(values[127], 0.25f);
  EXPECT_EQ(values[128], 2.0f);
}

// Bytes of whole numbers with scales of another kind of quantisation are told apart by their shape.
TEST(BlockScales, ScalesOfRowsAreErrors) {
  TempDir dir;
  write_bytes(dir.file("model.safetensors"),
              safetensors_bytes("{" + entry("w.weight", "I8", "[2,64]", 0, 128) + "," +
                                    entry("w.scale", "F32", "[2,1]", 128, 136) + "}",
                                std::string(136, 'a')));
  const std::string fault = error_of([&] { CheckpointDir checkpoint(dir.path()); });
  EXPECT_THAT(fault, HasSubstr("'w.scale': shape [2, 1], want [2, 4]"));
  EXPECT_THAT(fault, HasSubstr("4 bits"));
}

}  // namespace
}  // namespace strata
