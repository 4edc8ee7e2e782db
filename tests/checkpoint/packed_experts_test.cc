// SPDX-License-Identifier: Apache-2.0
// Experts in the form of gpt-oss' files: where each element of an expert's matrix is in them, bf16
// and MXFP4, read in any pieces; and that what is written is that form again.
#include "checkpoint/packed_experts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "checkpoint/checkpoint_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata {
namespace {

using testing::entry;
using testing::TempDir;

constexpr int64_t kExperts = 3, kIn = 5, kOut = 4;  // kOut: of gate, and what down reads
const std::string kPrefix = "model.layers.0.mlp.experts.";

// A file that grows.
struct File {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;

  void add(const std::string& name, const std::string& dtype, const std::string& shape,
           const std::string& bytes) {
    const auto begin = std::ssize(data);
    data += bytes;
    header += "," + entry(name, dtype, shape, begin, std::ssize(data));
  }
  // The values base, base + 1, ... in f32.
  void add_f32(const std::string& name, const std::string& shape, int64_t count, float base) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(base + static_cast<float>(i));
    add(name, "F32", shape,
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  }
  void write(const std::string& path) const {
    std::ofstream(path, std::ios::binary) << testing::safetensors_bytes(header + "}", data);
  }
};

void add_packed(File& file) {
  file.add_f32(kPrefix + "gate_up_proj", "[3,5,8]", 3 * 5 * 8, 0);
  file.add_f32(kPrefix + "gate_up_proj_bias", "[3,8]", 3 * 8, 1000);
  file.add_f32(kPrefix + "down_proj", "[3,4,5]", 3 * 4 * 5, 2000);
  file.add_f32(kPrefix + "down_proj_bias", "[3,5]", 3 * 5, 3000);
}

std::vector<float> values_of(const CheckpointDir& dir, const std::string& name) {
  const CheckpointTensor* tensor = dir.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(tensor->info.shape.num_elements()));
  dir.read_f32(*tensor, 0, std::ssize(values), values.data());
  return values;
}

TEST(PackedExperts, EveryElementIsWhereTheFileHasIt) {
  const TempDir folder;
  File file;
  add_packed(file);
  file.write(folder.file("model.safetensors"));
  const CheckpointDir dir(folder.file(""));
  EXPECT_EQ(dir.tensors().size(), 6u * kExperts);
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = kPrefix + std::to_string(e);
    for (int64_t half = 0; half < 2; ++half) {
      const std::string name = expert + (half == 0 ? ".gate_proj." : ".up_proj.");
      const std::vector<float> weight = values_of(dir, name + "weight");
      const std::vector<float> bias = values_of(dir, name + "bias");
      EXPECT_EQ(dir.find(name + "weight")->info.dims, (std::vector<int64_t>{kOut, kIn}));
      EXPECT_EQ(dir.find(name + "bias")->info.dims, (std::vector<int64_t>{kOut}));
      for (int64_t n = 0; n < kOut; ++n) {
        EXPECT_EQ(bias[static_cast<size_t>(n)], 1000 + e * 2 * kOut + 2 * n + half);
        for (int64_t k = 0; k < kIn; ++k) {
          EXPECT_EQ(weight[static_cast<size_t>(n * kIn + k)],
                    (e * kIn + k) * 2 * kOut + 2 * n + half);
        }
      }
    }
    const std::vector<float> down = values_of(dir, expert + ".down_proj.weight");
    const std::vector<float> bias = values_of(dir, expert + ".down_proj.bias");
    for (int64_t n = 0; n < kIn; ++n) {
      EXPECT_EQ(bias[static_cast<size_t>(n)], 3000 + e * kIn + n);
      for (int64_t k = 0; k < kOut; ++k) {
        EXPECT_EQ(down[static_cast<size_t>(n * kOut + k)], 2000 + (e * kOut + k) * kIn + n);
      }
    }
  }
}

TEST(PackedExperts, AnyPieceIsPartOfTheWhole) {
  const TempDir folder;
  File file;
  add_packed(file);
  file.write(folder.file("model.safetensors"));
  const CheckpointDir dir(folder.file(""));
  for (const CheckpointTensor& tensor : dir.tensors()) {
    const std::vector<float> whole = values_of(dir, tensor.info.name);
    for (int64_t first = 0; first < std::ssize(whole); ++first) {
      for (int64_t count = 1; first + count <= std::ssize(whole); ++count) {
        std::vector<float> piece(static_cast<size_t>(count)), raw(piece);
        dir.read_f32(tensor, first, count, piece.data());
        dir.read(tensor, first, count, raw.data());
        const std::vector<float> want(whole.begin() + first, whole.begin() + first + count);
        ASSERT_EQ(piece, want) << tensor.info.name << " " << first << " " << count;
        ASSERT_EQ(raw, want) << tensor.info.name << " " << first << " " << count;
      }
    }
    std::vector<std::byte> bytes(7);
    dir.read_bytes(tensor, 3, bytes);
    EXPECT_EQ(std::memcmp(bytes.data(), reinterpret_cast<const char*>(whole.data()) + 3, 7), 0)
        << tensor.info.name;
  }
}

TEST(PackedExperts, AreWrittenAsTheyWere) {
  const TempDir folder;
  File file;
  file.add_f32("model.embed_tokens.weight", "[2,3]", 6, 7);
  add_packed(file);
  file.add_f32(kPrefix + "gate_up_proj.other", "[2]", 2, 5);
  file.write(folder.file("model.safetensors"));
  const CheckpointDir dir(folder.file(""));
  const CheckpointLayout layout = dir.layout();
  EXPECT_TRUE(layout.packs_experts);
  CheckpointWriter writer(folder.file("out"), layout);
  for (const TensorDecl& tensor : writer.tensors()) {
    const std::vector<float> values = values_of(dir, tensor.name);
    // In two pieces, the second as bytes.
    const size_t cut = values.size() / 3;
    writer.append_f32(tensor.name, std::span(values).first(cut));
    writer.append(tensor.name, std::as_bytes(std::span(values).subspan(cut)));
  }
  writer.commit();
  const SafetensorsFile before(folder.file("model.safetensors"));
  const SafetensorsFile after(folder.file("out/model.safetensors"));
  ASSERT_EQ(after.tensors().size(), before.tensors().size());
  for (const TensorInfo& tensor : before.tensors()) {
    const TensorInfo* found = after.find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->dims, tensor.dims) << tensor.name;
    std::vector<float> want(static_cast<size_t>(tensor.shape.num_elements())), got(want);
    before.read_f32(tensor, 0, std::ssize(want), want.data());
    after.read_f32(*found, 0, std::ssize(got), got.data());
    EXPECT_EQ(got, want) << tensor.name;
  }
}

const std::string kLlama4 = "language_model.model.layers.1.feed_forward.experts.";

// Llama 4's: gate and up one behind the other, no biases; written as they were.
TEST(PackedExperts, HalvesAreWhereLlama4HasThem) {
  const TempDir folder;
  File file;
  file.add_f32(kLlama4 + "gate_up_proj", "[3,5,8]", 3 * 5 * 8, 0);
  file.add_f32(kLlama4 + "down_proj", "[3,4,5]", 3 * 4 * 5, 2000);
  file.write(folder.file("model.safetensors"));
  const CheckpointDir dir(folder.file(""));
  EXPECT_EQ(dir.tensors().size(), 3u * kExperts);
  for (int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = kLlama4 + std::to_string(e);
    for (int64_t half = 0; half < 2; ++half) {
      const std::string name = expert + (half == 0 ? ".gate_proj.weight" : ".up_proj.weight");
      const std::vector<float> weight = values_of(dir, name);
      EXPECT_EQ(dir.find(name)->info.dims, (std::vector<int64_t>{kOut, kIn}));
      for (int64_t i = 0; i < std::ssize(weight); ++i) {
        const int64_t n = i / kIn, k = i % kIn;
        EXPECT_EQ(weight[static_cast<size_t>(i)], (e * kIn + k) * 2 * kOut + half * kOut + n);
        float one = 0;
        dir.read_f32(*dir.find(name), i, 1, &one);
        EXPECT_EQ(one, weight[static_cast<size_t>(i)]);
      }
    }
    const std::vector<float> down = values_of(dir, expert + ".down_proj.weight");
    for (int64_t i = 0; i < std::ssize(down); ++i) {
      EXPECT_EQ(down[static_cast<size_t>(i)], 2000 + (e * kOut + i % kOut) * kIn + i / kOut);
    }
  }
  CheckpointWriter writer(folder.file("out"), dir.layout());
  for (const TensorDecl& tensor : writer.tensors())
    writer.append_f32(tensor.name, values_of(dir, tensor.name));
  writer.commit();
  const SafetensorsFile before(folder.file("model.safetensors"));
  const SafetensorsFile after(folder.file("out/model.safetensors"));
  ASSERT_EQ(after.tensors().size(), 2u);
  for (const TensorInfo& tensor : before.tensors()) {
    const TensorInfo& found = *after.find(tensor.name);
    EXPECT_EQ(found.dims, tensor.dims) << tensor.name;
    std::vector<float> want(static_cast<size_t>(tensor.shape.num_elements())), got(want);
    before.read_f32(tensor, 0, std::ssize(want), want.data());
    after.read_f32(found, 0, std::ssize(got), got.data());
    EXPECT_EQ(got, want) << tensor.name;
  }
}

// Without the biases the names are those of other models' tensors, which are [E, out, in].
TEST(PackedExperts, OtherModelsTensorsStay) {
  const TempDir folder;
  File file;
  file.add_f32(kPrefix + "gate_up_proj", "[3,5,8]", 3 * 5 * 8, 0);
  file.add_f32(kPrefix + "down_proj", "[3,4,5]", 3 * 4 * 5, 0);
  file.write(folder.file("model.safetensors"));
  const CheckpointDir dir(folder.file(""));
  EXPECT_EQ(dir.tensors().size(), 2u);
  EXPECT_NE(dir.find(kPrefix + "gate_up_proj"), nullptr);
  EXPECT_FALSE(dir.layout().packs_experts);
}

TEST(PackedExperts, ATensorThatIsThereTwiceIsAFault) {
  const TempDir folder;
  File file;
  add_packed(file);
  file.add_f32(kPrefix + "1.up_proj.weight", "[4,5]", 20, 0);
  file.write(folder.file("model.safetensors"));
  try {
    const CheckpointDir dir(folder.file(""));
    ADD_FAILURE() << "no fault";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("1.up_proj.weight' is there twice"), std::string::npos)
        << error.what();
  }
}

// MXFP4: 2 experts, 3 outputs of gate and of up, 64 inputs.
class Mxfp4Experts : public ::testing::Test {
 protected:
  void SetUp() override {
    uint64_t state = 1;
    const auto random = [&](int64_t count, int least, int most) {
      std::string bytes;
      for (int64_t i = 0; i < count; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        bytes.push_back(
            static_cast<char>(least + static_cast<int>(state >> 40) % (most - least + 1)));
      }
      return bytes;
    };
    blocks_ = random(2 * 6 * 2 * 16, 0, 255);
    scales_ = random(2 * 6 * 2, 118, 130);
    File file;
    file.add_f32(kPrefix + "gate_up_proj_bias", "[2,6]", 12, 0);
    file.add(kPrefix + "gate_up_proj_blocks", "U8", "[2,6,2,16]", blocks_);
    file.add(kPrefix + "gate_up_proj_scales", "U8", "[2,6,2]", scales_);
    file.write(folder_.file("model.safetensors"));
  }
  // Of row r of the file's [2 * 6, 64].
  [[nodiscard]] float value(int64_t row, int64_t k) const {
    const auto byte =
        static_cast<uint8_t>(blocks_[static_cast<size_t>((row * 2 + k / 32) * 16 + k % 32 / 2)]);
    const auto scale = static_cast<uint8_t>(scales_[static_cast<size_t>(row * 2 + k / 32)]);
    return e2m1_to_float(k % 2 == 0 ? byte & 15 : byte >> 4) *
           std::ldexp(1.0f, static_cast<int>(scale) - 127);
  }

  TempDir folder_;
  std::string blocks_, scales_;
};

TEST_F(Mxfp4Experts, ValuesAreTheFormats) {
  const CheckpointDir dir(folder_.file(""));
  for (int64_t e = 0; e < 2; ++e) {
    for (int64_t half = 0; half < 2; ++half) {
      const std::string name = kPrefix + std::to_string(e) + (half == 0 ? ".gate" : ".up");
      const std::vector<float> got = values_of(dir, name + "_proj.weight");
      ASSERT_EQ(got.size(), 3u * 64);
      for (int64_t i = 0; i < std::ssize(got); ++i) {
        EXPECT_EQ(got[static_cast<size_t>(i)], value(e * 6 + 2 * (i / 64) + half, i % 64)) << i;
      }
    }
  }
  EXPECT_EQ(dir.find(kPrefix + "gate_up_proj_scales"), nullptr);
  // What is saved is bf16 in the form of bf16 files.
  CheckpointLayout layout = dir.layout();
  const ExpertPacker packer(layout);
  ASSERT_EQ(layout.entries.size(), 2u);
  const TensorDecl& weight =
      layout.entries[layout.entries[0].tensor.shape.rank() == 3 ? 0 : 1].tensor;
  EXPECT_EQ(weight.name, kPrefix + "gate_up_proj");
  EXPECT_EQ(weight.dtype, DType::kBF16);
  EXPECT_EQ(weight.shape, (Shape{2, 64, 6}));
}

TEST_F(Mxfp4Experts, StayInFewBits) {
  const CheckpointDir dir(folder_.file(""));
  const CheckpointTensor& up = *dir.find(kPrefix + "1.up_proj.weight");
  ASSERT_EQ(dir.narrow_form(up), NarrowForm::kE2m1);
  EXPECT_EQ(dir.scan_for_unrepresentable_values(up, /*codes=*/true), "");
  const int64_t row_bytes = narrow_layout(NarrowForm::kE2m1).row_bytes(64);
  std::vector<std::byte> rows(static_cast<size_t>(2 * row_bytes));
  dir.read_quantised_rows(up, 1, 2, rows.data());
  for (int64_t n = 0; n < 2; ++n) {
    for (int64_t k = 0; k < 64; ++k) {
      const auto code = static_cast<uint8_t>(rows[static_cast<size_t>(n * row_bytes + k)]);
      const auto scale =
          static_cast<uint8_t>(rows[static_cast<size_t>(n * row_bytes + 64 + k / 32)]);
      EXPECT_EQ(e2m1_to_float(code) * std::ldexp(1.0f, static_cast<int>(scale) - 127),
                value(6 + 2 * (n + 1) + 1, k))
          << n << " " << k;
    }
  }
}

}  // namespace
}  // namespace strata
