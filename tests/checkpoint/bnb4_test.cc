// SPDX-License-Identifier: Apache-2.0
// bitsandbytes' 4 bits and FP8 as their own libraries read them, and damaged files.
#include "checkpoint/bnb4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

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

const std::string kData = STRATA_SOURCE_DIR "/tests/checkpoint/data/";

// The value of an element of a row before it is packed, as tensor/narrow.h defines it.
float narrow_value(NarrowForm form, const std::vector<std::byte>& row, int64_t cols, int64_t col) {
  const NarrowLayout& layout = narrow_layout(form);
  const auto code = static_cast<uint8_t>(row[static_cast<size_t>(col)]);
  const int64_t field = col / kNarrowSuper * layout.super_fields +
                        narrow_float_field(col / kNarrowGroup, layout.super_fields);
  float scale;
  std::memcpy(&scale, row.data() + cols + field * 4, sizeof(scale));
  const float value = layout.codes == NarrowCodes::kE4m3 ? f16_to_float(narrow_e4m3_half(code))
                                                         : layout.values[code];
  return value * scale;
}

// Values as bitsandbytes and transformers have them (tools/golden/make_packed.py), in slices that
// begin and end anywhere, and of the rows that stay in few bits after bf16's rounding.
void expect_their_values(const std::string& folder, int64_t* num_narrow) {
  const CheckpointDir checkpoint(kData + folder);
  const SafetensorsFile theirs(kData + folder + "/want.safetensors");
  ASSERT_EQ(checkpoint.tensors().size(), theirs.tensors().size());
  for (const TensorInfo& info : theirs.tensors()) {
    SCOPED_TRACE(info.name);
    const CheckpointTensor* tensor = checkpoint.find(info.name);
    ASSERT_NE(tensor, nullptr);
    ASSERT_EQ(tensor->info.shape, info.shape);
    const int64_t count = info.shape.num_elements(), cols = info.shape[1];
    std::vector<float> want(static_cast<size_t>(count)), got(want.size());
    theirs.read_f32(info, 0, count, want.data());
    for (int64_t at = 0; at < count; at += 977) {
      checkpoint.read_f32(*tensor, at, std::min<int64_t>(977, count - at), got.data() + at);
    }
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0);
    const NarrowForm form = checkpoint.narrow_form(*tensor);
    if (form == NarrowForm::kNone) continue;
    ++*num_narrow;
    for (int64_t r = 0; r < info.shape[0]; ++r) {
      std::vector<std::byte> row(static_cast<size_t>(narrow_layout(form).row_bytes(cols)));
      checkpoint.read_quantised_rows(*tensor, r, 1, row.data());
      for (int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(round_to_bf16(narrow_value(form, row, cols, c)),
                  round_to_bf16(want[static_cast<size_t>(r * cols + c)]))
            << r << " " << c;
      }
    }
  }
}

TEST(Packed, ValuesAreTheLibraries) {
  int64_t num_narrow = 0;
  expect_their_values("packed", &num_narrow);
  // Of [20, 200], [16, 72] and [3, 352] runs of 64 are none of a row; float16 rounds twice.
  EXPECT_EQ(num_narrow, 2 * 4 + 4);
  expect_their_values("packed_blocks", &num_narrow);
  EXPECT_EQ(num_narrow, 2 * 4 + 4) << "blocks of 32 columns have no form";
}

// The faults of a file of which the end of one tensor is other bytes: where there is one, the rows
// are refused for it.
std::string faults_with(const std::string& name, const std::string& bytes, bool codes = false) {
  TempDir dir;
  const std::string path = dir.file("model.safetensors");
  std::filesystem::copy(kData + "packed/model.safetensors", path);
  const SafetensorsFile file(path);
  for (const TensorInfo& info : file.tensors()) {
    if (info.name != name) continue;
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
        .seekp(info.end - std::ssize(bytes))
        .write(bytes.data(), std::ssize(bytes));
  }
  const CheckpointDir checkpoint(dir.path());
  std::string faults;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const NarrowForm form = checkpoint.narrow_form(tensor);
    if (form == NarrowForm::kNone) continue;
    const int64_t rows = tensor.info.shape[0], cols = tensor.info.shape[1];
    std::vector<std::byte> room(static_cast<size_t>(rows * narrow_layout(form).row_bytes(cols)));
    const std::string refused =
        error_of([&] { checkpoint.read_quantised_rows(tensor, 0, rows, room.data()); });
    const std::string fault = checkpoint.scan_for_unrepresentable_values(tensor, true);
    EXPECT_EQ(fault.empty(), refused.empty()) << refused;
    if (!fault.empty()) {
      EXPECT_EQ(refused, fault + "; --weights bf16");
    }
    faults += codes ? fault : checkpoint.scan_for_unrepresentable_values(tensor, false);
  }
  return faults;
}

TEST(Packed, WhatNoFormHoldsIsFound) {
  const auto scale = [](float value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (const float bad : {0x1p111f, -0x1p-109f, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    SCOPED_TRACE(bad);
    EXPECT_THAT(faults_with("bnb.0.nf4.weight.absmax", scale(bad)),
                HasSubstr("'bnb.0.nf4.weight.absmax': row 47 has "));
    const float of_fp8 = std::min(bad, 0x1.1p15f) / 256;  // of which few bits keep e4m3 / 256
    EXPECT_THAT(faults_with("fp8.0.weight_scale_inv", scale(of_fp8)),
                HasSubstr("'fp8.0.weight': row 128 has "));
    EXPECT_THAT(faults_with("fp8.2.weight_scale", scale(of_fp8)),
                HasSubstr("'fp8.2.weight': row 39 has "));
  }
  EXPECT_THAT(faults_with("bnb.0.fp4.nested.weight.nested_absmax", scale(0x1p120f)),
              HasSubstr("'bnb.0.fp4.nested.weight.absmax': row 0 has "));
  for (const float good : {0.0f, -0x1p110f, 0x1p-108f}) {
    EXPECT_EQ(faults_with("bnb.0.nf4.weight.absmax", scale(good)), "");
    EXPECT_EQ(faults_with("fp8.3.weight_scale", scale(std::clamp(good, -0x1p15f, 0x1p15f) / 256)),
              "");
  }
  EXPECT_EQ(faults_with("fp8.0.weight", "\x7f"), "");
  EXPECT_THAT(faults_with("fp8.0.weight", "\x7f", true), HasSubstr("'fp8.0.weight': row 255 has "));
  EXPECT_THAT(faults_with("fp8.3.weight", "\xff", true), HasSubstr("'fp8.3.weight': row 23 has "));
}

// A weight of 64 elements whose state is `state`, and absmax of so many floats.
std::string fault_of(const std::string& state, int64_t floats, const std::string& map = "F32") {
  TempDir dir;
  std::string data(32, '\x12');
  data += state;
  const auto end = static_cast<int64_t>(data.size());
  data += std::string(static_cast<size_t>(floats) * 4 + 64, '\0');
  const std::string length = std::to_string(state.size());
  write_bytes(
      dir.file("model.safetensors"),
      safetensors_bytes(
          "{" + entry("w.weight", "U8", "[32,1]", 0, 32) + "," +
              entry("w.weight.quant_state.bitsandbytes__nf4", "U8", "[" + length + "]", 32, end) +
              "," +
              entry("w.weight.absmax", "F32", "[" + std::to_string(floats) + "]", end,
                    end + floats * 4) +
              "," +
              entry("w.weight.quant_map", map, map == "F32" ? "[16]" : "[64]", end + floats * 4,
                    end + floats * 4 + 64) +
              "}",
          data));
  return error_of([&] { CheckpointDir checkpoint(dir.path()); });
}

TEST(Packed, DamagedStatesAreErrors) {
  const auto state = [](const std::string& block, const std::string& shape) {
    return R"({"quant_type": "nf4", "blocksize": )" + block +
           R"(, "dtype": "bfloat16", "shape": )" + shape + "}";
  };
  EXPECT_EQ(fault_of(state("64", "[1, 64]"), 1), "");
  EXPECT_THAT(fault_of(state("0", "[1, 64]"), 1), HasSubstr("want numbers above 0"));
  EXPECT_THAT(fault_of(state("64", "[-1, 64]"), 1), HasSubstr("want numbers above 0"));
  EXPECT_THAT(fault_of(state("64", "[2147483647, 2147483647]"), 1), HasSubstr("32 bytes"));
  EXPECT_THAT(fault_of(state("64", "[1, 62]"), 1), HasSubstr("32 bytes"));
  EXPECT_THAT(fault_of(state("64", "[64]"), 1), HasSubstr("want 2"));
  EXPECT_THAT(fault_of(state("32", "[1, 64]"), 1), HasSubstr("want 2 elements of F32"));
  EXPECT_THAT(fault_of(state("64", "[1, 64]"), 1, "U8"), HasSubstr("want 16 elements of F32"));
  EXPECT_THAT(fault_of("{", 1), HasSubstr("quant_state"));
  EXPECT_THAT(
      fault_of(R"({"blocksize": 64, "dtype": "bfloat16", "shape": [1, 64], "nested_blocksize": 0})",
               1),
      HasSubstr("want numbers above 0"));
  EXPECT_THAT(fault_of(R"({"blocksize": 64, "dtype": "int8", "shape": [1, 64]})", 1),
              HasSubstr("dtype 'int8'"));
}

}  // namespace
}  // namespace strata
