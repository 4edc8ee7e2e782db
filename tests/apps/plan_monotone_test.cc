// SPDX-License-Identifier: Apache-2.0
// strata plan --memory: more memory never plans more time, whole and in stages, whatever is traded
// for it; and no policy with a name is faster than what the memory that it takes is planned for.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <regex>
#include <vector>

#include "base/files.h"
#include "model/pass/recompute.h"
#include "setup/engine_setup.h"
#include "tests/apps/plan_run.h"

namespace strata::apps {
namespace {

constexpr double kRounding = 1e-9;

constexpr const char* k06b =
    R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3","vocab_size":151936,)"
    R"("hidden_size":1024,"intermediate_size":3072,"num_hidden_layers":28,)"
    R"("num_attention_heads":16,"num_key_value_heads":8,"head_dim":128,)"
    R"("max_position_embeddings":40960,"rms_norm_eps":1e-06,"rope_theta":1000000,)"
    R"("tie_word_embeddings":true,"torch_dtype":"bfloat16","hidden_act":"silu"})";

struct Case {
  std::string model = {};  // of tests/golden; empty: the shape of Qwen3-0.6B
  std::string tokens = "6x128";
  StageOptions stages = {};
  int microbatches = 0;
  std::string method = "lora";
  bool named_folder = false;  // for activations
  int budgets = 8;
  [[nodiscard]] std::string text() const {
    return fmt::format("{} {} {} stages, {} micro-batches, {} {}", model, tokens, stages.stages,
                       microbatches, stages.schedule, method);
  }
};

class PlanMonotone : public ::testing::Test {
 protected:
  PlanMonotone() {
    std::filesystem::create_directories(root_ + "/0.6b");
    write_file_atomic(root_ + "/0.6b/config.json", k06b);
    write_file_atomic(
        root_ + "/machine.json",
        R"({"bf16_flops":4e11,"f32_flops":1e11,"read_bytes_per_s":2e10,"file_bytes_per_s":1e9})");
  }
  ~PlanMonotone() override { std::filesystem::remove_all(root_); }

  [[nodiscard]] PlanOptions options_of(const Case& c) const {
    PlanOptions options = options_of_plan(c.model.empty() ? "qwen3" : c.model);
    if (c.model.empty()) options.model = root_ + "/0.6b";
    options.tokens = c.tokens;
    options.machine = root_ + "/machine.json";
    options.method = c.method;
    options.stages = c.stages;
    options.schedule.microbatches = c.microbatches;
    return options;
  }
  // Nothing where not even the least fits.
  [[nodiscard]] std::optional<boost::json::object> within(const Case& c, int64_t bytes) const {
    PlanOptions options = options_of(c);
    options.memory = std::to_string(bytes);
    if (c.named_folder) options.offload = ::testing::TempDir();
    try {
      return plan(options);
    } catch (const Error&) {
      ::testing::internal::GetCapturedStdout();
      return std::nullopt;
    }
  }
  [[nodiscard]] boost::json::object of_policy(const Case& c, const std::string& policy) const {
    PlanOptions options = options_of(c);
    options.recompute = policy;
    return plan(options);
  }

  void expect_monotone(const Case& c) const {
    SCOPED_TRACE(c.text());
    const int64_t most = of_policy(c, "none").at("planned_bytes").as_int64();
    const int64_t first = of_policy(c, "full").at("planned_bytes").as_int64() / 10 * 8;
    double last = 1e300;
    int num_plans = 0;
    for (int i = 0; i <= c.budgets; ++i) {
      const int64_t bytes = first + (most - first) * i / c.budgets;
      const std::optional<boost::json::object> line = within(c, bytes);
      EXPECT_TRUE(line || num_plans == 0) << bytes << ": more memory holds no plan";
      if (!line) continue;
      ++num_plans;
      EXPECT_LE(line->at("planned_bytes").as_int64(), bytes);
      const double seconds = line->at("seconds_per_step").as_double();
      EXPECT_LE(seconds, last * (1 + kRounding)) << bytes;
      last = std::min(last, seconds);
    }
    EXPECT_GE(num_plans, 2);
  }

  void expect_no_policy_is_faster(const Case& c) const {
    SCOPED_TRACE(c.text());
    std::vector<std::string> policies = {"none", "full"};
    for (const model::RecomputePreset& preset : model::recompute_presets()) {
      if (!preset.value().offloads_any()) policies.emplace_back(preset.name);
    }
    for (const std::string& policy : policies) {
      const boost::json::object named = of_policy(c, policy);
      const auto line = within(c, named.at("planned_bytes").as_int64());
      ASSERT_TRUE(line) << policy;
      EXPECT_LE(line->at("seconds_per_step").as_double(),
                named.at("seconds_per_step").as_double() * (1 + kRounding))
          << policy;
    }
  }

  const std::string root_ = ::testing::TempDir() + "/strata_plan_monotone";
};

TEST_F(PlanMonotone, OfWholeModels) {
  for (const bool named : {false, true}) {
    for (const char* method : {"lora", "full"})
      expect_monotone({.model = "qwen3", .method = method, .named_folder = named});
    expect_monotone({.model = "gemma3", .named_folder = named});
  }
  expect_monotone({.model = "deepseek_v4", .budgets = 4});
}

TEST_F(PlanMonotone, OfModelsInStages) {
  expect_monotone({.model = "qwen3", .stages = {.stages = 2}, .method = "full"});
  for (const int stages : {1, 2, 3, 4}) {
    for (const char* schedule : {"gpipe", "1f1b"}) {
      expect_monotone({.model = "gemma3",
                       .stages = {.stages = stages, .schedule = schedule},
                       .microbatches = stages == 1 ? 2 : 0});
    }
  }
  expect_monotone(
      {.model = "deepseek_v4", .stages = {.stages = 3}, .microbatches = 2, .budgets = 4});
  expect_monotone({.model = "gemma3",
                   .stages = {.stages = 2, .chunks = 2, .schedule = "circular"},
                   .microbatches = 2});
}

TEST_F(PlanMonotone, OfARealShape) {
  expect_monotone({.tokens = "4x512"});
  expect_monotone({.tokens = "4x512", .stages = {.stages = 2}});
}

TEST_F(PlanMonotone, NoPolicyWithANameIsFaster) {
  for (const int stages : {1, 2, 3}) {
    expect_no_policy_is_faster({.model = "gemma3",
                                .stages = {.stages = stages, .schedule = "1f1b"},
                                .microbatches = stages == 1 ? 2 : 0});
  }
}

// Of what is drawn no dot of a policy lies below the line "fastest that fits".
TEST_F(PlanMonotone, NoPolicyLiesBelowTheLineOfTheFront) {
  for (const bool named : {false, true}) {
    for (const char* model : {"qwen3", "gemma3"}) {
      SCOPED_TRACE(model);
      PlanOptions options = options_of({.model = model, .tokens = "4x256"});
      options.svg = root_ + "/plan.svg";
      if (named) {
        options.memory = "64GiB";
        options.offload = ::testing::TempDir();
      }
      static_cast<void>(plan(options));
      const std::string text = read_file(options.svg, 1 << 20);
      constexpr double kPixel = 0.11;  // coordinates have a digit after the point
      std::vector<std::pair<double, double>> line;
      std::smatch found;
      ASSERT_TRUE(
          std::regex_search(text, found, std::regex("<path fill=\"none\"[^>]* d=\"([^\"]*)\"")));
      const std::string points = found[1];
      const std::regex number("([0-9.]+)[ ,]([0-9.]+)");
      for (std::sregex_iterator at(points.begin(), points.end(), number), end; at != end; ++at)
        line.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
      ASSERT_FALSE(line.empty());
      const std::regex circle("<circle cx=\"([0-9.]+)\" cy=\"([0-9.]+)\"");
      int dots = 0;
      for (std::sregex_iterator at(text.begin(), text.end(), circle), end; at != end; ++at) {
        ++dots;
        const double x = std::stod((*at)[1]), y = std::stod((*at)[2]);
        double lowest = 0.0;  // of the line up to there: the largest y
        for (const auto& [line_x, line_y] : line)
          if (line_x <= x + kPixel) lowest = std::max(lowest, line_y);
        EXPECT_LE(y, lowest + kPixel) << x;
      }
      EXPECT_GE(dots, 3);
    }
  }
}

}  // namespace
}  // namespace strata::apps
