// SPDX-License-Identifier: Apache-2.0
// Every type against gguf-py on random blocks with extreme scales (tools/golden/make_gguf.py), to
// the bit.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "base/files.h"
#include "checkpoint/gguf/narrow.h"
#include "checkpoint/gguf/types.h"
#include "tests/checkpoint/safetensors_bytes.h"
#include "tests/ops/narrow_rows.h"

namespace strata {
namespace {

const GgufType* type_of(std::string_view name) {
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufType* type = find_gguf_type(id);
    if (type != nullptr && type->name == name) return type;
  }
  return nullptr;
}

// What is kept in few bits has the values that are dequantised. One row of all blocks.
void expect_kept_values(const GgufType& type, const char* blocks, int64_t count,
                        const std::vector<float>& values) {
  const NarrowForm form = gguf_narrow_form(type);
  if (form == NarrowForm::kNone) return;
  const auto cols = static_cast<int64_t>(values.size());
  std::vector<std::byte> row(static_cast<size_t>(narrow_layout(form).row_bytes(cols)));
  ASSERT_EQ(gguf_repack_rows_until_fault(type, reinterpret_cast<const std::byte*>(blocks), 1, cols,
                                         row.data()),
            -1);
  const ops::testing::NarrowMatrix kept(form, 1, cols, std::move(row));
  for (int64_t i = 0; i < cols; ++i) {
    const float want = values[static_cast<size_t>(i)];
    ASSERT_EQ(std::bit_cast<uint32_t>(kept.f32(0, i)), std::bit_cast<uint32_t>(want))
        << i << " of " << count << " blocks: " << kept.f32(0, i) << ", want " << want;
  }
}

TEST(GgufTypes, EqualGgufPy) {
  const std::string bytes = read_file(testing::data_path("gguf_blocks.bin"), 1 << 24);
  std::set<std::string> seen;
  for (size_t at = 0; at < bytes.size();) {
    const std::string name(bytes.data() + at);
    uint32_t sizes[3];  // blocks, and bytes and elements of each
    std::memcpy(sizes, bytes.data() + at + 8, sizeof(sizes));
    at += 8 + sizeof(sizes);
    SCOPED_TRACE(name);
    const GgufType* type = type_of(name);
    ASSERT_NE(type, nullptr);
    ASSERT_EQ(type->block_bytes, sizes[1]);
    ASSERT_EQ(type->block_elements, sizes[2]);
    std::vector<float> values(size_t{sizes[0]} * sizes[2]);
    EXPECT_EQ(type->dequantise(reinterpret_cast<const std::byte*>(bytes.data() + at), sizes[0],
                               values.data()),
              -1);
    expect_kept_values(*type, bytes.data() + at, sizes[0], values);
    at += size_t{sizes[0]} * sizes[1];
    for (size_t i = 0; i < values.size(); ++i) {
      float want = 0.0f;
      std::memcpy(&want, bytes.data() + at + i * sizeof(float), sizeof(float));
      // ggml's code 8 of MXFP4 is a zero without a sign.
      ASSERT_TRUE(std::bit_cast<uint32_t>(values[i]) == std::bit_cast<uint32_t>(want))
          << i << ": " << values[i] << ", want " << want;
    }
    at += values.size() * sizeof(float);
    seen.insert(name);
  }
  const std::string readable = readable_gguf_types();
  for (size_t begin = 0; begin < readable.size();) {
    const size_t end = std::min(readable.find(", ", begin), readable.size());
    const std::string name = readable.substr(begin, end - begin);
    EXPECT_TRUE(name == "F32" || seen.contains(name)) << name << " is not tested";
    begin = end + 2;
  }
}

// What reading the blocks as one row that is kept returns.
int64_t kept(const GgufType& type, const std::vector<std::byte>& blocks) {
  const int64_t cols = std::ssize(blocks) / type.block_bytes * type.block_elements;
  std::vector<std::byte> row(
      static_cast<size_t>(narrow_layout(gguf_narrow_form(type)).row_bytes(cols)));
  return gguf_repack_rows_until_fault(type, blocks.data(), 1, cols, row.data());
}

// Scales that are no finite numbers: the place of the first such block.
TEST(GgufTypes, SayWhereAScaleIsNotFinite) {
  const std::pair<std::string_view, std::vector<size_t>> scales[] = {
      {"Q4_0", {0}},    {"Q4_1", {0, 2}},   {"Q5_0", {0}},   {"Q5_1", {0, 2}},
      {"Q8_0", {0}},    {"Q2_K", {80, 82}}, {"Q3_K", {108}}, {"Q4_K", {0, 2}},
      {"Q5_K", {0, 2}}, {"Q6_K", {208}},    {"IQ4_NL", {0}}, {"IQ4_XS", {0}}};
  for (const auto& [name, places] : scales) {
    const GgufType* type = type_of(name);
    ASSERT_NE(type, nullptr) << name;
    for (const size_t place : places) {
      for (const uint8_t high : {0x7c, 0xfc, 0x7e}) {
        std::vector<std::byte> blocks(static_cast<size_t>(3 * type->block_bytes));
        blocks[static_cast<size_t>(type->block_bytes) + place + 1] = std::byte{high};
        std::vector<float> out(static_cast<size_t>(3 * type->block_elements));
        EXPECT_EQ(type->dequantise(blocks.data(), 3, out.data()), 1) << name << " " << place;
        if (gguf_narrow_form(*type) != NarrowForm::kNone) {
          EXPECT_EQ(kept(*type, blocks), 1) << name << " " << place;
        }
      }
    }
  }
  std::vector<std::byte> block(17);
  std::vector<float> out(32);
  const GgufType& mxfp4 = *type_of("MXFP4");
  block[0] = std::byte{255};
  EXPECT_EQ(mxfp4.dequantise(block.data(), 1, out.data()), 0);
  EXPECT_EQ(kept(mxfp4, block), 0);
  block[0] = std::byte{254};
  EXPECT_EQ(mxfp4.dequantise(block.data(), 1, out.data()), -1);  // codes of zero
  EXPECT_EQ(kept(mxfp4, block), -1);
  block[1] = std::byte{0x77};
  EXPECT_EQ(mxfp4.dequantise(block.data(), 1, out.data()), 0);
  EXPECT_EQ(kept(mxfp4, block), 0);
  for (int exponent = 250; exponent < 256; ++exponent) {
    for (int code = 0; code < 16; ++code) {
      block[0] = static_cast<std::byte>(exponent);
      block[1] = static_cast<std::byte>(code);
      EXPECT_EQ(kept(mxfp4, block), mxfp4.dequantise(block.data(), 1, out.data()))
          << exponent << " " << code;
    }
  }
}

}  // namespace
}  // namespace strata
