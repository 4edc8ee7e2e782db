// SPDX-License-Identifier: Apache-2.0
// What ranks that divide weights load: all of it together, and each reads little more than its
// part, of files in FP8 too.
#include "model/weights/weight_shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "model/weights/load.h"
#include "model/weights/no_layers.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/base/temp_dir.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata::model {
namespace {

using testing::TempDir;

constexpr const char* kFp8 = "FP8";

// A model whose matrices are FP8 with one scale each. `nan`: a row of a matrix, by its name, whose
// first code is no number.
void write_fp8_model(const TempDir& folder, const std::string& nan = "", int64_t nan_row = 0) {
  const std::string config = R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32,
    "tie_word_embeddings": true})";
  testing::write_bytes(folder.file("config.json"), config);
  const ModelWeights names(CpuBackend(CpuPath::kReference, 1),
                           parse_config(config, "c", true).config, DType::kBF16, nullptr,
                           kNoLayers);
  std::string header, data;
  const auto add = [&](const std::string& name, const char* dtype, const std::string& shape,
                       const std::string& bytes) {
    const auto begin = std::ssize(data);
    header += (data.empty() ? "{" : ",") +
              testing::entry(name, dtype, shape, begin, begin + std::ssize(bytes));
    data += bytes;
  };
  uint32_t state = 1;
  for (const Parameter& parameter : names.table()) {
    std::string bytes(static_cast<size_t>(parameter.shape.num_elements()), 0);
    for (char& c : bytes) {
      state = state * 1664525 + 1013904223;
      c = static_cast<char>((state >> 24 & 0x7e) + 1);  // neither 0 nor 0x7f
      if (c == 0x7f) c = 1;
    }
    if (parameter.is_matrix()) {
      if (parameter.name == nan) bytes[static_cast<size_t>(nan_row * parameter.num_cols())] = 0x7f;
      add(parameter.name, "F8_E4M3", parameter.shape.to_string(), bytes);
      const float scale = 0.01f;
      bytes.assign(reinterpret_cast<const char*>(&scale), sizeof(scale));
      add(parameter.name + "_scale", "F32", "[]", bytes);
    } else {
      add(parameter.name, "BF16", parameter.shape.to_string(), bytes + bytes);
    }
  }
  testing::write_bytes(folder.file("model.safetensors"),
                       testing::safetensors_bytes(header + "}", data));
}

// Bytes that this process has read so far.
int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t count = -1;
  io >> name >> count;
  EXPECT_EQ(name, "rchar:");
  return count;
}

int64_t bytes_of_tensors(const CheckpointSource& checkpoint) {
  int64_t bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) bytes += tensor.info.num_bytes();
  return bytes;
}

struct Case {
  const char* golden;
  DType dtype = DType::kF32;
};
std::ostream& operator<<(std::ostream& out, const Case& of) {
  return out << of.golden << ' ' << dtype_name(of.dtype);
}

// Of all parameters that ranks may divide, as they lie.
std::string bytes_of(const ModelWeights& weights) {
  std::string out;
  for (const Parameter& parameter : weights.table()) {
    if (parameter.row != nullptr && parameter.row->balances) continue;
    const void* const data = parameter.is_matrix() ? parameter.panel.data : parameter.values.data;
    out.append(static_cast<const char*>(data), static_cast<size_t>(parameter.bytes));
  }
  return out;
}

double share_of_zeros(const std::string& bytes) {
  return static_cast<double>(std::count(bytes.begin(), bytes.end(), '\0')) /
         static_cast<double>(bytes.size());
}

struct WeightShards : ::testing::TestWithParam<Case> {
  void SetUp() override {
    if (GetParam().golden == kFp8) write_fp8_model(folder);
  }
  [[nodiscard]] std::string dir() const {
    if (GetParam().golden == kFp8) return folder.path();
    return std::string(STRATA_SOURCE_DIR) + "/tests/golden/" + GetParam().golden + "/model";
  }
  LoadedModel load(const WeightShare& share) {
    return load_model(
        backend, dir(),
        {.compute_dtype = GetParam().dtype, .keep = KeepWeights::kAuto, .share = share});
  }
  // What a load reads of tensors: all but the header and the config.
  int64_t bytes_to_load(const WeightShare& share) {
    const int64_t before = bytes_read();
    const std::unique_ptr<CheckpointSource> source = open_checkpoint(dir());
    static_cast<void>(load_config(dir(), false));
    const int64_t of_header = bytes_read() - before;
    load(share);
    return bytes_read() - before - 2 * of_header;
  }
  TempDir folder;
  CpuBackend backend{choose_cpu_path(), 1};
};

TEST_P(WeightShards, EachRankReadsItsPart) {
  constexpr int kRanks = 3;
  const std::string whole = bytes_of(*load({}).weights);
  std::string together(whole.size(), '\0');
  for (int rank = 0; rank < kRanks; ++rank) {
    const LoadedModel model = load({.all = {rank, kRanks}});
    // A third, and what is read at its two ends of each unit.
    EXPECT_LT(static_cast<double>(bytes_to_load({.all = {rank, kRanks}})),
              0.65 * static_cast<double>(bytes_of_tensors(*model.checkpoint)))
        << rank;
    EXPECT_GT(share_of_zeros(bytes_of(*model.weights)), 0.35 + 0.65 * share_of_zeros(whole))
        << rank;
    model.weights->shards()->memory().trim();
    const std::string own = bytes_of(*model.weights);
    for (size_t i = 0; i < whole.size(); ++i) {
      if (own[i] == '\0') continue;
      ASSERT_EQ(own[i], whole[i]) << rank << ' ' << i;
      ASSERT_EQ(together[i], '\0') << rank << ' ' << i;
      together[i] = own[i];
    }
  }
  EXPECT_TRUE(together == whole);
}

INSTANTIATE_TEST_SUITE_P(Models, WeightShards,
                         ::testing::Values(Case{"qwen3"}, Case{"qwen3", DType::kBF16},
                                           Case{"deepseek_mla", DType::kBF16},
                                           Case{"qwen3_moe_fused", DType::kBF16},
                                           Case{"deepseek_v4", DType::kBF16},
                                           Case{kFp8, DType::kBF16}));

// The ranks that read a code that is no number say where it is; one process, which looks at all of
// them first, dequantises the matrix.
TEST(WeightShardsOfFp8, ACodeThatIsNoNumberIsNamed) {
  const TempDir folder;
  write_fp8_model(folder, "model.layers.1.mlp.down_proj.weight", 200);
  CpuBackend backend(choose_cpu_path(), 1);
  const auto load = [&](const WeightShare& share) {
    return testing::error_of([&] {
      load_model(backend, folder.path(),
                 {.compute_dtype = DType::kBF16, .keep = KeepWeights::kAuto, .share = share});
    });
  };
  EXPECT_EQ(load({}), "");
  EXPECT_EQ(load({.all = {0, 3}}), "");
  EXPECT_EQ(load({.all = {2, 3}}),
            "tensor 'model.layers.1.mlp.down_proj.weight': row 200 has values that are no numbers "
            "in F8_E4M3, or scales with which weights do not stay in few bits; --weights bf16");
}

}  // namespace
}  // namespace strata::model
