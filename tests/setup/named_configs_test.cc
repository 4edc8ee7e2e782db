// SPDX-License-Identifier: Apache-2.0
// The shapes of published models: each is read without a warning and has as many parameters as its
// makers say.
#include "setup/named_configs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "base/files.h"
#include "model/config.h"
#include "model/weights/layer_table.h"
#include "setup/config_source.h"
#include "tests/base/temp_dir.h"

namespace strata::apps {
namespace {

using testing::TempDir;

// Of the model cards, in units of 10^9 and rounded as they are there. Where a card counts vision or
// multi-token prediction too, what is left without them.
const std::map<std::string_view, double> kBillions = {
    {"qwen3-0.6b", 0.6},       {"qwen3-1.7b", 1.7},          {"qwen3-4b", 4.0},
    {"qwen3-8b", 8.2},         {"qwen3-14b", 14.8},          {"qwen3-32b", 32.8},
    {"qwen3-30b-a3b", 30.5},   {"smollm2-135m", 0.135},      {"llama-3.2-1b", 1.24},
    {"llama-3.2-3b", 3.21},    {"llama-3.1-8b", 8.03},       {"llama-3.1-70b", 70.6},
    {"llama2-7b", 6.74},       {"mistral-7b", 7.25},         {"mistral-nemo-12b", 12.2},
    {"mixtral-8x7b", 46.7},    {"mixtral-8x22b", 141.0},     {"granite-3.3-2b", 2.53},
    {"granite-3.3-8b", 8.17},  {"smollm3-3b", 3.08},         {"gemma-2b", 2.51},
    {"gemma-7b", 8.54},        {"gemma-3-1b", 1.0},          {"gemma-3-4b", 3.88},
    {"gemma-3-12b", 11.8},     {"gemma-3-27b", 27.0},        {"olmo-2-7b", 7.3},
    {"olmo-2-13b", 13.7},      {"olmo-3-7b", 7.3},           {"olmo-3-32b", 32.2},
    {"glm-4.5-air", 107.0},    {"glm-4.5", 353.0},           {"deepseek-v3", 671.0},
    {"kimi-k2", 1026.0},       {"ministral-3-3b", 3.43},     {"ministral-3-8b", 8.49},
    {"gemma-2-2b", 2.61},      {"gemma-2-9b", 9.24},         {"gemma-2-27b", 27.2},
    {"lfm2-350m", 0.354},      {"lfm2-700m", 0.742},         {"lfm2-1.2b", 1.17},
    {"ministral-3-14b", 13.5}, {"qwen3-next-80b-a3b", 79.7}, {"phi-4-mini", 3.836},
    {"phi-4", 14.7},           {"gemma-4-12b", 11.9},        {"gemma-4-31b", 30.7},
    {"gemma-4-26b-a4b", 25.2}, {"gemma-4-e2b", 4.65},        {"gemma-4-e4b", 7.46},
    {"llama-4-scout", 107.8},  {"llama-4-maverick", 400.7}};

double count_parameters(const model::ModelConfig& config) {
  const model::LayerTable table(config);
  double count = static_cast<double>(config.hidden_size) +  // the final norm
                 model::count_values(table.vocabulary_rows()) +
                 model::count_values(table.per_layer_rows());
  for (const model::LayerStack& stack : table.stacks())
    count += model::count_values(stack) * static_cast<double>(stack.size());
  return count;
}

TEST(NamedConfigs, HaveThePublishedNumberOfParameters) {
  for (const NamedConfig& named : named_configs()) {
    SCOPED_TRACE(named.name);
    const model::ParsedConfig parsed =
        model::parse_config(std::string(named.json), std::string(named.name), /*strict=*/true);
    EXPECT_TRUE(parsed.warnings.empty()) << parsed.warnings.front();
    const auto published = kBillions.find(named.name);
    if (published == kBillions.end()) continue;
    EXPECT_NEAR(count_parameters(parsed.config) / 1e9 / published->second, 1.0, 0.02);
  }
}

TEST(NamedConfigs, AreAllThere) {
  for (const auto& [name, billions] : kBillions) {
    const auto all = named_configs();
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const NamedConfig& named) {
      return named.name == name;
    })) << name;
  }
}

// In whatever case people type it; but what lies there goes first.
TEST(NamedConfigs, AreFoundInAnyCaseBehindFolders) {
  namespace fs = std::filesystem;
  const TempDir dir;
  const fs::path before = fs::current_path();
  fs::current_path(dir.path());
  fs::create_directory("Qwen3-0.6B");
  write_file_atomic("Qwen3-0.6B/config.json", R"({"mine": true})");
  const ConfigSource folder = read_config_source("model", "Qwen3-0.6B");
  const ConfigSource named = read_config_source("model", "Qwen3-8B");
  fs::current_path(before);
  EXPECT_EQ(folder.json, R"({"mine": true})");
  EXPECT_EQ(folder.dir, "Qwen3-0.6B");
  EXPECT_EQ(named.where, "qwen3-8b");
}

}  // namespace
}  // namespace strata::apps
