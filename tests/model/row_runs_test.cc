// SPDX-License-Identifier: Apache-2.0
// Parameters that are runs of rows of a larger tensor (Qwen3-Next's): an adapter comes back as it
// was from each form that it is written in, and a new model's parts are drawn each for itself.
#include <gtest/gtest.h>

#include <map>

#include "model/adapter/export.h"
#include "model/adapter/fused.h"
#include "model/adapter/io.h"
#include "model/weights/init.h"
#include "model/weights/save.h"
#include "ops/cpu/cpu_backend.h"
#include "tests/base/temp_dir.h"

namespace strata::model {
namespace {

using strata::testing::TempDir;

const std::string kCase = std::string(STRATA_SOURCE_DIR) + "/tests/golden/qwen3_next/";

// Every tensor of an adapter's file by its name.
std::map<std::string, std::vector<float>> tensors_of(const std::string& dir) {
  const PeftAdapter peft(dir);
  std::map<std::string, std::vector<float>> tensors;
  for (const TensorInfo& info : peft.file().tensors()) {
    std::vector<float>& values = tensors[info.name];
    values.resize(static_cast<size_t>(info.shape.num_elements()));
    peft.file().read_f32(info, 0, info.shape.num_elements(), values.data());
  }
  return tensors;
}

class RowRuns : public ::testing::Test {
 protected:
  void expect_same_masters(const LoraAdapter& a, const LoraAdapter& b) const {
    ASSERT_EQ(a.modules().size(), b.modules().size());
    for (const LoraModule& module : a.modules()) {
      const LoraModule* other = b.find_module(module.spec.layer, module.spec.target);
      ASSERT_NE(other, nullptr) << module.path;
      ASSERT_EQ(module.b.shape, other->b.shape) << module.path;
      for (int64_t i = 0; i < module.b.shape.num_elements(); ++i)
        ASSERT_EQ(module.b.f32()[i], other->b.f32()[i]) << module.path << ' ' << i;
    }
  }

  CpuBackend backend_{choose_cpu_path(), 1};
  LoadedModel model_ = load_model(backend_, kCase + "model", {});
  TempDir dir_;
};

TEST_F(RowRuns, AnAdapterIsWrittenInTheOrderOfItsFile) {
  const auto adapter = load_adapter(backend_, model_, kCase + "a");
  save_adapter(*adapter, dir_.file("again"), "base");
  EXPECT_EQ(tensors_of(dir_.file("again")), tensors_of(kCase + "a"));
}

TEST_F(RowRuns, AnAdapterComesBackFromEachForm) {
  const auto adapter = load_adapter(backend_, model_, kCase + "a");
  save_adapter_for_peft(*adapter, model_.config, dir_.file("peft"), "base");
  expect_same_masters(*adapter, *load_adapter(backend_, model_, dir_.file("peft")));
  save_adapter_for_tinker(*adapter, dir_.file("tinker"), "base");
  const auto from_tinker = tensors_of(dir_.file("tinker"));
  for (const auto& [name, values] : tensors_of(kCase + "a")) {
    if (name.find("in_proj") == std::string::npos || name.find("lora_B") == std::string::npos)
      continue;
    EXPECT_EQ(from_tinker.at(name), values) << name;
  }
}

TEST_F(RowRuns, PartsOfATensorAreDrawnEachForItself) {
  const LoadedModel made = init_model(backend_, model_.config, DType::kF32, 3);
  for (const StoredTensor& tensor : made.weights->stored_tensors()) {
    if (tensor.name.find("in_proj") == std::string_view::npos) continue;
    EXPECT_EQ(tensor.parameters.size(), 2u) << tensor.name;
    std::vector<std::vector<float>> rows;
    for (const size_t index : tensor.parameters) {
      std::vector<float>& row =
          rows.emplace_back(static_cast<size_t>(made.weights->table()[index].num_cols()));
      made.weights->read_rows(backend_, index, 0,
                              TensorView(row.data(), DType::kF32, {1, std::ssize(row)}));
    }
    EXPECT_NE(rows[0], rows[1]) << tensor.name;
  }
  // And they come back from files, where they take turns.
  save_model(backend_, made, dir_.file("made"), nullptr, DType::kF32);
  std::filesystem::copy(kCase + "model/config.json", dir_.file("made/config.json"));
  const LoadedModel read = load_model(backend_, dir_.file("made"), {});
  for (size_t index = 0; index < read.weights->table().size(); ++index) {
    const Parameter& parameter = read.weights->table()[index];
    const Shape shape = {parameter.num_rows(), parameter.num_cols()};
    std::vector<float> a(static_cast<size_t>(shape.num_elements())), b(a.size());
    made.weights->read_rows(backend_, index, 0, TensorView(a.data(), DType::kF32, shape));
    read.weights->read_rows(backend_, index, 0, TensorView(b.data(), DType::kF32, shape));
    EXPECT_EQ(a, b) << parameter.name;
  }
}

}  // namespace
}  // namespace strata::model
