// SPDX-License-Identifier: Apache-2.0
// Models of every architecture as gguf-py writes them (tools/golden/make_gguf.py) against the
// safetensors that they were made of: what `strata probe` computes is equal to the last bit, in f32
// and in bf16.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "tests/base/temp_dir.h"
#include "tests/golden/probe_run.h"

namespace strata::golden {
namespace {

const std::string kRoot = STRATA_SOURCE_DIR "/tests/golden/";

struct FileRow {
  std::string file, golden, config;
};
void PrintTo(const FileRow& row, std::ostream* out) { *out << row.file; }

std::vector<FileRow> read_files() {
  std::vector<FileRow> files;
  const boost::json::value rows = read_json(kRoot + "gguf/files.json");
  for (const auto& row : rows.as_array()) {
    const auto& object = row.as_object();
    const auto* config = object.if_contains("config");
    files.push_back({std::string(row.at("file").as_string()),
                     std::string(row.at("golden").as_string()),
                     config == nullptr ? "" : std::string(config->as_string())});
  }
  return files;
}

void expect_equal(const Tensors& got, const Tensors& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [stored, tensor] : want) {
    // Text models that were saved from a multimodal checkpoint keep that one's names.
    std::string name = stored;
    constexpr std::string_view kPart = "language_model.";
    if (const size_t at = name.find(kPart); at != std::string::npos) name.erase(at, kPart.size());
    const auto found = got.find(name);
    ASSERT_NE(found, got.end()) << name;
    ASSERT_EQ(found->second.dims, tensor.dims) << name;
    EXPECT_EQ(std::memcmp(found->second.values.data(), tensor.values.data(),
                          tensor.values.size() * sizeof(float)),
              0)
        << name;
  }
}

class GgufModels : public ::testing::TestWithParam<FileRow> {};

TEST_P(GgufModels, EqualTheirSafetensors) {
  const testing::TempDir folder;
  const FileRow& row = GetParam();
  std::string model = kRoot + row.golden + "/model";
  if (!row.config.empty()) {
    std::filesystem::copy(model, folder.file("model"));
    model = folder.file("model");
    std::filesystem::copy_file(kRoot + "gguf/" + row.config, model + "/config.json",
                               std::filesystem::copy_options::overwrite_existing);
  }
  // A_log loses bits in GGUF, which training them shows.
  const bool trains = !row.file.starts_with("qwen35");
  int num_compared = 0;
  for (const GoldenRow& golden : read_goldens()) {
    const std::string request = golden.name.substr(golden.name.find('/') + 1);
    if (!golden.name.starts_with(row.golden + "/")) continue;
    if (request != "main" && request != "params" && (!trains || request != "train_params"))
      continue;
    for (const char* dtype : {"f32", "bf16"}) {
      SCOPED_TRACE(fmt::format("{} {}", golden.name, dtype));
      Probe probe = {.model = model,
                     .adapters = golden.adapters,
                     .request = golden.request,
                     .options = {"--dtype", dtype}};
      const ProbeResult want = run_probe(probe);
      ASSERT_EQ(want.exit_code, 0) << want.message;
      probe.model = kRoot + "gguf/" + row.file;
      const ProbeResult got = run_probe(probe);
      ASSERT_EQ(got.exit_code, 0) << got.message;
      EXPECT_EQ(got.message.find("is not known"), std::string::npos) << got.message;
      expect_equal(got.tensors, by_stacked_expert(want.tensors));
      ++num_compared;
    }
  }
  EXPECT_GE(num_compared, 2);
}

INSTANTIATE_TEST_SUITE_P(Files, GgufModels, ::testing::ValuesIn(read_files()),
                         [](const auto& info) {
                           std::string name = info.param.file;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

}  // namespace
}  // namespace strata::golden
