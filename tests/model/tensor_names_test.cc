// SPDX-License-Identifier: Apache-2.0
// Heads of models that are said to be tied, and tensors without elements.
#include "model/weights/tensor_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "checkpoint/checkpoint_dir.h"
#include "model/weights/load.h"
#include "model/weights/save.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/checkpoint/safetensors_bytes.h"

namespace strata::model {
namespace {

using ::testing::HasSubstr;

const std::string kGolden = std::string(STRATA_SOURCE_DIR) + "/tests/golden/";

class StoredHead : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(dir_);
    std::filesystem::copy(kGolden + "llama_tied_embed/model", dir_);
  }
  void TearDown() override {
    std::filesystem::remove_all(dir_);
    std::filesystem::remove_all(out_);
  }

  // Adds a tensor behind all others.
  void add(const std::string& name, const std::string& shape, const std::string& values) {
    const std::string path = dir_ + "/model.safetensors";
    const std::string bytes = read_file(path, 1 << 24);
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof(size));
    std::string header = bytes.substr(8, size), data = bytes.substr(8 + size);
    const auto begin = static_cast<int64_t>(data.size());
    data += values;
    header.insert(
        header.rfind('}'),
        "," + strata::testing::entry(name, "F32", shape, begin, static_cast<int64_t>(data.size())));
    std::ofstream(path, std::ios::binary) << strata::testing::safetensors_bytes(header, data);
  }
  // The embedding's values, the last one changed where `differs`.
  void add_head(bool differs) {
    const CheckpointDir checkpoint(dir_);
    const CheckpointTensor& embedding = *checkpoint.find("model.embed_tokens.weight");
    std::vector<float> values(static_cast<size_t>(embedding.info.shape.num_elements()));
    checkpoint.read_f32(embedding, 0, std::ssize(values), values.data());
    if (differs) values.back() += 1.0f;
    add("lm_head.weight", embedding.info.shape_text(),
        std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)));
  }

  CpuBackend backend_{choose_cpu_path(), 1};
  std::string dir_ = ::testing::TempDir() + "stored_head";
  std::string out_ = ::testing::TempDir() + "stored_head_out";
};

TEST_F(StoredHead, AHeadOfOtherValuesIsTheModels) {
  add_head(/*differs=*/true);
  const LoadedModel model = load_model(backend_, dir_, {.compute_dtype = DType::kF32});
  EXPECT_FALSE(model.config.tie_word_embeddings);
  EXPECT_NE(model.weights->head_index(), model.weights->embedding_index());
  ASSERT_EQ(model.warnings.size(), 1u);
  EXPECT_THAT(model.warnings[0], HasSubstr("'lm_head.weight' differs"));
  save_model(backend_, model, out_, /*trained=*/nullptr);
  EXPECT_NE(CheckpointDir(out_).find("lm_head.weight"), nullptr);
}

TEST_F(StoredHead, AHeadOfTheEmbeddingsValuesIsTheEmbedding) {
  add_head(/*differs=*/false);
  const LoadedModel model = load_model(backend_, dir_, {.compute_dtype = DType::kF32});
  EXPECT_TRUE(model.config.tie_word_embeddings);
  EXPECT_TRUE(model.warnings.empty());
}

TEST_F(StoredHead, AHeadOfAnotherShapeIsAFault) {
  add("lm_head.weight", "[1]", std::string(4, '\0'));
  try {
    load_model(backend_, dir_, {.compute_dtype = DType::kF32});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("'lm_head.weight': shape [1]"));
  }
}

// As transformers saves them where n_shared_experts is 0, and looks for them.
TEST_F(StoredHead, TensorsWithoutElementsStayInSavedFiles) {
  const std::string name = "model.layers.1.mlp.shared_experts.up_proj.weight";
  add(name, "[0, 60]", "");
  const LoadedModel model = load_model(backend_, dir_, {.compute_dtype = DType::kF32});
  save_model(backend_, model, out_, /*trained=*/nullptr);
  const CheckpointDir saved(out_);
  ASSERT_NE(saved.find(name), nullptr);
  EXPECT_EQ(saved.find(name)->info.shape_text(), "[0, 60]");
}

// transformers looks for each of them, also in what is saved of files that lack some.
TEST_F(StoredHead, TensorsWithoutElementsOfTheModelAreAddedToSavedFiles) {
  const std::string there = "model.layers.0.mlp.shared_experts.up_proj.weight";
  const std::string missing = "model.layers.0.mlp.shared_experts.down_proj.weight";
  add(there, "[0, 60]", "");
  LoadedModel model = load_model(backend_, dir_, {.compute_dtype = DType::kF32});
  model.config.empty_tensors = {{there, {0, 60}}, {missing, {60, 0}}};
  save_model(backend_, model, out_, /*trained=*/nullptr);
  const CheckpointDir saved(out_);
  for (const auto& [name, shape] : {std::pair(there, "[0, 60]"), std::pair(missing, "[60, 0]")}) {
    ASSERT_NE(saved.find(name), nullptr) << name;
    EXPECT_EQ(saved.find(name)->info.shape_text(), shape);
  }
  EXPECT_EQ(saved.tensors().size(), model.checkpoint->tensors().size() + 1);
}

}  // namespace
}  // namespace strata::model
