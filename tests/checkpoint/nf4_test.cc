// SPDX-License-Identifier: Apache-2.0
// nf4 as bitsandbytes makes it of full types (tools/golden/make_packed.py), block by block and as a
// source of weights.
#include "checkpoint/nf4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "checkpoint/checkpoint_dir.h"
#include "checkpoint/nf4_source.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using testing::entry;
using testing::error_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_bytes;

const std::string kData = STRATA_SOURCE_DIR "/tests/checkpoint/data/full";

std::set<std::string> names_of(const CheckpointSource& source) {
  std::set<std::string> names;
  for (const CheckpointTensor& tensor : source.tensors()) names.insert(tensor.info.name);
  return names;
}

std::unique_ptr<CheckpointSource> open_as_nf4(const std::string& dir) {
  auto source = std::make_unique<CheckpointDir>(dir);
  const std::set<std::string> names = names_of(*source);
  return std::make_unique<Nf4Source>(std::move(source), names);
}

// The first of the codes with the nearest value.
size_t nearest_code(float value) {
  size_t best = 0;
  for (size_t code = 1; code < 16; ++code) {
    if (std::fabs(value - nf4_values()[code]) < std::fabs(value - nf4_values()[best])) best = code;
  }
  return best;
}

TEST(Nf4, CodesAreTheNearest) {
  std::mt19937 random(1);
  std::vector<float> values = {1.0f};
  for (size_t code = 0; code + 1 < 16; ++code) {
    float at = (nf4_values()[code] + nf4_values()[code + 1]) / 2;
    for (int i = 0; i < 8; ++i) at = std::nextafter(at, -2.0f);
    for (int i = 0; i < 16; ++i, at = std::nextafter(at, 2.0f)) values.push_back(at);
  }
  for (int i = 0; i < 10000; ++i) {
    values.push_back(static_cast<float>(random()) / 2147483648.0f - 1.0f);
  }
  for (size_t begin = 1; begin < values.size(); begin += kNf4Block - 1) {
    // A 1 at the front makes the scale 1, so that the quotients are the values.
    std::vector<float> block = {1.0f};
    for (size_t i = begin; i < std::min(values.size(), begin + kNf4Block - 1); ++i)
      block.push_back(values[i]);
    std::vector<std::byte> codes(block.size());
    ASSERT_EQ(nf4_scale(block), 1.0f);
    quantise_to_nf4(block, 1.0f, codes);
    for (size_t i = 0; i < block.size(); ++i)
      ASSERT_EQ(static_cast<size_t>(codes[i]), nearest_code(block[i])) << block[i];
  }
}

// Codes, scales, and values in slices that begin and end anywhere.
TEST(Nf4Source, IsBitsandbytes) {
  const auto source = open_as_nf4(kData);
  const SafetensorsFile theirs(kData + "/want.safetensors");
  int64_t num_narrow = 0;
  ASSERT_GE(source->tensors().size(), 6u);
  for (const CheckpointTensor& tensor : source->tensors()) {
    const std::string& name = tensor.info.name;
    SCOPED_TRACE(name);
    const auto read = [&](const std::string& part) {
      const TensorInfo& info = *theirs.find(name + part);
      std::vector<float> values(static_cast<size_t>(info.shape.num_elements()));
      theirs.read_f32(info, 0, std::ssize(values), values.data());
      return values;
    };
    EXPECT_EQ(tensor.info.dtype_name, "nf4");
    const std::vector<float> want = read(""), scales = read(".absmax"), codes = read(".codes");
    std::vector<float> got(want.size());
    for (int64_t at = 0; at < std::ssize(got); at += 77) {
      source->read_f32(tensor, at, std::min<int64_t>(77, std::ssize(got) - at), got.data() + at);
    }
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0);
    const int64_t rows = tensor.info.shape[0], cols = tensor.info.shape[1];
    const NarrowForm form = source->narrow_form(tensor);
    EXPECT_EQ(form == NarrowForm::kNf4, cols % kNf4Block == 0);
    if (form != NarrowForm::kNf4) continue;
    ++num_narrow;
    std::vector<std::byte> row(static_cast<size_t>(narrow_layout(form).row_bytes(cols)));
    for (int64_t r = 0; r < rows; ++r) {
      source->read_quantised_rows(tensor, r, 1, row.data());
      for (int64_t c = 0; c < cols; ++c) {
        const auto element = static_cast<size_t>(r * cols + c);
        ASSERT_EQ(static_cast<float>(row[static_cast<size_t>(c)]), codes[element]) << r << " " << c;
        float scale = 0.0f;
        std::memcpy(&scale, row.data() + cols + c / kNf4Block * 4, sizeof(scale));
        ASSERT_EQ(scale, scales[element / kNf4Block]) << r << " " << c;
      }
    }
  }
  EXPECT_GE(num_narrow, 4);
}

TEST(Nf4Source, NamesAValueThatHasNoPlaceInFourBits) {
  for (const auto& [value, text] :
       {std::pair(INFINITY, "row 1 has a value of inf"), std::pair(NAN, "row 1 has a value of nan"),
        std::pair(1e-35f, "row 1 has a value of 1e-35")}) {
    std::vector<float> values(128, 0.0f);
    values[70] = static_cast<float>(value);
    const TempDir dir;
    write_bytes(dir.file("model.safetensors"),
                safetensors_bytes("{" + entry("w", "F32", "[2,64]", 0, 512) + "}",
                                  {reinterpret_cast<const char*>(values.data()), 512}));
    const auto source = open_as_nf4(dir.file("."));
    std::vector<std::byte> rows(
        static_cast<size_t>(2 * narrow_layout(NarrowForm::kNf4).row_bytes(64)));
    EXPECT_THAT(
        error_of([&] { source->read_quantised_rows(source->tensors()[0], 0, 2, rows.data()); }),
        HasSubstr(text));
  }
}

}  // namespace
}  // namespace strata
