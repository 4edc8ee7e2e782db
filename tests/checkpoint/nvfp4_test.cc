// SPDX-License-Identifier: Apache-2.0
// NVFP4 as compressed-tensors reads it and by ModelOpt's formula, next to FP8, and damaged files.
#include "checkpoint/nvfp4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "checkpoint/checkpoint_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"
#include "tests/ops/narrow_rows.h"

namespace strata {
namespace {

using testing::entry;
using testing::error_of;
using ::testing::HasSubstr;
using testing::safetensors_bytes;
using testing::TempDir;
using testing::write_bytes;

const std::string kData = STRATA_SOURCE_DIR "/tests/checkpoint/data/nvfp4";

// The rows that stay in few bits have the bf16 of the values that are dequantised.
void expect_kept_rows(const CheckpointDir& checkpoint, const CheckpointTensor& tensor,
                      const std::vector<float>& want) {
  const NarrowForm form = checkpoint.narrow_form(tensor);
  const int64_t rows = tensor.info.shape[0], cols = tensor.info.shape[1];
  std::vector<std::byte> bytes(static_cast<size_t>(rows * narrow_layout(form).row_bytes(cols)));
  checkpoint.read_quantised_rows(tensor, 0, rows, bytes.data());
  const ops::testing::NarrowMatrix kept(form, rows, cols, std::move(bytes));
  for (int64_t i = 0; i < rows * cols; ++i) {
    ASSERT_EQ(kept.bf16(i / cols, i % cols).bits, to_bf16(want[static_cast<size_t>(i)]).bits) << i;
  }
}

// In slices that begin and end anywhere; FP8 of compressed-tensors and ModelOpt among them.
TEST(Nvfp4, ValuesAreTheLibraries) {
  const CheckpointDir checkpoint(kData);
  const SafetensorsFile theirs(kData + "/want.safetensors");
  ASSERT_EQ(checkpoint.tensors().size(), theirs.tensors().size())
      << "scales of weights, activations and caches are no tensors";
  int kept = 0;
  for (const TensorInfo& info : theirs.tensors()) {
    SCOPED_TRACE(info.name);
    const CheckpointTensor* tensor = checkpoint.find(info.name);
    ASSERT_NE(tensor, nullptr);
    ASSERT_EQ(tensor->info.shape, info.shape);
    const int64_t count = info.shape.num_elements();
    std::vector<float> want(static_cast<size_t>(count)), got(want.size());
    theirs.read_f32(info, 0, count, want.data());
    for (int64_t at = 0; at < count; at += 977) {
      checkpoint.read_f32(*tensor, at, std::min<int64_t>(977, count - at), got.data() + at);
    }
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * 4), 0);
    EXPECT_EQ(checkpoint.scan_for_unrepresentable_values(*tensor, true), "");
    if (checkpoint.narrow_form(*tensor) == NarrowForm::kNone) continue;
    ++kept;
    expect_kept_rows(checkpoint, *tensor, want);
  }
  // Of [5, 48] and [3, 16], in two forms each, rows are no whole groups of 32 columns.
  EXPECT_EQ(kept, std::ssize(theirs.tensors()) - 4);
}

// Every scale in e4m3 times, and over, tensors' scales of any 24 bits.
TEST(Nvfp4, SumsAreProductsAndQuotients) {
  const Counter counter{.seed = 1, .stream = 2};
  int none = 0;
  for (uint64_t i = 0; i < 40'000; ++i) {
    const uint32_t word = counter.words(i)[0];
    const float t = std::ldexp(1.0f + static_cast<float>(word >> 9) * 0x1p-23f,
                               static_cast<int>(word % 100) - 50);
    for (const bool divides : {false, true}) {
      const Nvfp4Scale scale = {.t = t, .divides = divides};
      const auto sum = scale.as_sum();
      none += sum ? 0 : 1;
      if (!sum) continue;
      for (int code = 0; code < 127; ++code) {
        const float e = f16_to_float(narrow_e4m3_half(static_cast<uint8_t>(code)));
        ASSERT_EQ(std::fma(e, (*sum)[0], e * (*sum)[1]), scale.scale_of(256.0f * e))
            << t << " " << divides << " " << code;
      }
    }
  }
  EXPECT_LT(none, 4) << "quotients that no sum gives are one in 2^20 at most";
  for (const float t : {0x1p61f, -0x1p-61f, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_FALSE((Nvfp4Scale{.t = t}.as_sum())) << t;
  }
  EXPECT_TRUE((Nvfp4Scale{.t = 0.0f}.as_sum()));
}

std::string floats(std::initializer_list<float> values) {
  std::string out;
  for (const float value : values) out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return out;
}

// A file of tensors given one after the other.
class Packed {
 public:
  Packed& add(const std::string& name, const char* dtype, const char* shape,
              const std::string& bytes) {
    const auto begin = static_cast<int64_t>(data_.size());
    data_ += bytes;
    entries_ += entries_.empty() ? "" : ",";
    entries_ += entry(name, dtype, shape, begin, static_cast<int64_t>(data_.size()));
    return *this;
  }
  const std::string& write() {
    write_bytes(dir_.file("model.safetensors"), safetensors_bytes("{" + entries_ + "}", data_));
    return dir_.path();
  }
  std::string fault() {
    write();
    return error_of([&] { CheckpointDir checkpoint(dir_.path()); });
  }

 private:
  std::string entries_, data_;
  TempDir dir_;
};

const std::string kCodes(32, '\x12');

// [2, 32] with other scales.
std::string fault_with_scales(const char* dtype, const char* shape, const std::string& scales,
                              const char* of_tensor, const char* of_shape,
                              const std::string& tensor) {
  std::string faults;
  Packed theirs, opts;
  faults += theirs.add("w.weight_packed", "U8", "[2,16]", kCodes)
                .add("w.weight_scale", dtype, shape, scales)
                .add("w.weight_global_scale", of_tensor, of_shape, tensor)
                .fault();
  const std::string second = opts.add("w.weight", "U8", "[2,16]", kCodes)
                                 .add("w.weight_scale", dtype, shape, scales)
                                 .add("w.weight_scale_2", of_tensor, of_shape, tensor)
                                 .fault();
  EXPECT_EQ(faults.empty(), second.empty()) << faults << "\n" << second;
  return faults + "\n" + second;
}

TEST(Nvfp4, DamagedFilesAreErrors) {
  const std::string one = floats({1.0f}), scales(4, '\x38');
  EXPECT_EQ(fault_with_scales("F8_E4M3", "[2,2]", scales, "F32", "[1]", one), "\n");
  EXPECT_EQ(fault_with_scales("F8_E4M3", "[2,2]", scales, "F32", "[]", one), "\n");
  EXPECT_THAT(fault_with_scales("F8_E4M3", "[128,4]", std::string(512, 'a'), "F32", "[1]", one),
              HasSubstr("'w.weight_scale': F8_E4M3 [128, 4], want F8_E4M3 [2, 2]"));
  EXPECT_THAT(fault_with_scales("F8_E4M3", "[4]", scales, "F32", "[1]", one),
              HasSubstr("padded or swizzled for a device?"));
  EXPECT_THAT(fault_with_scales("U8", "[2,2]", scales, "F32", "[1]", one),
              HasSubstr("'w.weight_scale': U8 [2, 2], want F8_E4M3 [2, 2]"));
  EXPECT_THAT(fault_with_scales("F8_E4M3", "[2,2]", scales, "BF16", "[1]", "ab"),
              HasSubstr("BF16 [1], want one element of F32"));
  EXPECT_THAT(fault_with_scales("F8_E4M3", "[2,2]", scales, "F32", "[2]", one + one),
              HasSubstr("F32 [2], want one element of F32"));
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_THAT(fault_with_scales("F8_E4M3", "[2,2]", scales, "F32", "[1]", floats({bad})),
                HasSubstr("want a finite number"));
  }
  Packed zero;
  EXPECT_THAT(zero.add("w.weight_packed", "U8", "[2,16]", kCodes)
                  .add("w.weight_scale", "F8_E4M3", "[2,2]", scales)
                  .add("w.weight_global_scale", "F32", "[1]", floats({0.0f}))
                  .fault(),
              HasSubstr("got 0, want a finite number but 0, which divides"));
}

TEST(Nvfp4, PartsThatAreMissingOrThereTwiceAreErrors) {
  const std::string one = floats({1.0f}), scales(4, '\x38');
  Packed without_tensor, without_scales, twice, wide;
  EXPECT_THAT(without_tensor.add("w.weight", "U8", "[2,16]", kCodes)
                  .add("w.weight_scale", "F8_E4M3", "[2,2]", scales)
                  .fault(),
              HasSubstr("'w.weight_scale_2': is missing; 'w.weight' wants it"));
  EXPECT_THAT(without_scales.add("w.weight_packed", "U8", "[2,16]", kCodes)
                  .add("w.weight_global_scale", "F32", "[1]", one)
                  .fault(),
              HasSubstr("'w.weight_scale': is missing; 'w.weight_packed' wants it"));
  EXPECT_THAT(twice.add("w.weight_packed", "U8", "[2,16]", kCodes)
                  .add("w.weight_scale", "F8_E4M3", "[2,2]", scales)
                  .add("w.weight_global_scale", "F32", "[1]", one)
                  .add("w.weight", "F32", "[1]", one)
                  .fault(),
              HasSubstr("'w.weight' is there twice, as it is and packed"));
  // A row that ends inside a group has no scales that fit.
  EXPECT_THAT(wide.add("w.weight", "U8", "[2,4]", kCodes.substr(0, 8))
                  .add("w.weight_scale", "F8_E4M3", "[2,1]", scales.substr(0, 2))
                  .add("w.weight_scale_2", "F32", "[1]", one)
                  .fault(),
              HasSubstr("'w.weight' is [2, 8] in NVFP4"));
}

TEST(Nvfp4, ScalesThatNoFormHoldsAreFound) {
  for (const char* bad : {"\x7f", "\xff", "\xb8"}) {
    Packed packed;
    packed.add("w.weight", "U8", "[2,16]", kCodes)
        .add("w.weight_scale", "F8_E4M3", "[2,2]", std::string(3, '\x38') + bad)
        .add("w.weight_scale_2", "F32", "[1]", floats({1.0f}));
    const CheckpointDir checkpoint(packed.write());
    const CheckpointTensor& tensor = *checkpoint.find("w.weight");
    ASSERT_EQ(checkpoint.narrow_form(tensor), NarrowForm::kNvfp4);
    const std::string fault = checkpoint.scan_for_unrepresentable_values(tensor, false);
    EXPECT_THAT(fault, HasSubstr("'w.weight_scale': row 1 has a scale below zero"));
    std::vector<std::byte> rows(
        static_cast<size_t>(2 * narrow_layout(NarrowForm::kNvfp4).row_bytes(32)));
    EXPECT_EQ(error_of([&] { checkpoint.read_quantised_rows(tensor, 0, 2, rows.data()); }),
              fault + "; --weights bf16");
    checkpoint.read_quantised_rows(tensor, 0, 1, rows.data());
  }
  // A tensor's scale far from any model's is dequantised.
  Packed small;
  small.add("w.weight", "U8", "[2,16]", kCodes)
      .add("w.weight_scale", "F8_E4M3", "[2,2]", std::string(4, '\x38'))
      .add("w.weight_scale_2", "F32", "[1]", floats({0x1p-70f}));
  const CheckpointDir checkpoint(small.write());
  EXPECT_EQ(checkpoint.narrow_form(*checkpoint.find("w.weight")), NarrowForm::kNone);
}

}  // namespace
}  // namespace strata
