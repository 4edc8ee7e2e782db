// SPDX-License-Identifier: Apache-2.0
// Losses of preference pairs against TRL's (tools/golden/make_dpo.py and make_orpo.py), and what
// the reference model gives, kept in a file.
#include "setup/pair_scoring.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <filesystem>

#include "base/files.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "model/adapter/tensors.h"
#include "model/weights/load.h"
#include "ops/cpu/cpu_backend.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

const std::string kSource = STRATA_SOURCE_DIR;

// A token's logprob in f32 is off by 4e-6 at most (logits of about 10, and the sum of 4096 exps);
// an answer has 24 tokens, and a pair two, each twice, times beta.
constexpr double kRewardBar = 24 * 4 * 4e-6 * 0.25;
// Of the norm of all gradients: so many roundings of four layers, times what slopes are off by.
constexpr double kGradientBar = 2e-4;

std::vector<int32_t> ids_of(const json::value& list) {
  std::vector<int32_t> ids;
  for (const json::value& id : list.as_array()) ids.push_back(id.to_number<int32_t>());
  return ids;
}

data::Example example_of(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), answer.begin(), answer.end());
  data::Example example;
  for (size_t t = 1; t < all.size(); ++t) {
    example.tokens.push_back(all[t - 1]);
    example.targets.push_back(all[t]);
    example.weights.push_back(t >= prompt.size() ? 1.0f : 0.0f);
    example.num_trained += t >= prompt.size() ? 1 : 0;
  }
  return example;
}

class PairScoring : public ::testing::Test {
 protected:
  explicit PairScoring(const std::string& golden = "dpo")
      : golden_(kSource + "/tests/golden/" + golden) {}
  void SetUp() override {
    expected_ = json::parse(read_file(golden_ + "/expected.json", 1 << 20)).as_object();
    auto backend = std::make_unique<CpuBackend>(choose_cpu_path(), 2);
    auto model =
        model::load_model(*backend, kSource + "/models/tiny-qwen3", {.compute_dtype = DType::kF32});
    engine_ = std::make_unique<engine::Engine>(std::move(backend), std::move(model),
                                               engine::EngineOptions{});
    runner_ = std::make_unique<engine::Runner>(*engine_);
    slot_ = runner_->load_adapter(kSource + "/tests/golden/eval/adapter");
    auto store = std::make_shared<data::ExampleStore>();
    for (const json::value& pair : expected_.at("pairs").as_array()) {
      const std::vector<int32_t> prompt = ids_of(pair.at("prompt_ids"));
      store->add_pair(example_of(prompt, ids_of(pair.at("chosen_ids"))),
                      example_of(prompt, ids_of(pair.at("rejected_ids"))));
    }
    store->seal();
    pairs_.examples = data::Examples(store);
    pairs_.files.emplace_back().count = store->size();
    add_references(*runner_, api::AdapterSlot::kBase, pairs_.examples, 2048, references_,
                   [](int64_t) {});
  }

  [[nodiscard]] api::Loss loss_of(const std::string& type) const {
    return loss_of_pairs(
        {.loss = "dpo",
         .type = type,
         .beta = expected_.at("beta").to_number<double>(),
         .label_smoothing =
             type == "robust" ? expected_.at("label_smoothing").to_number<double>() : 0.0});
  }
  // Gradients of the mean over these pairs, and over their chosen answers' tokens.
  PairScore run_with_gradients(const api::Loss& loss, const std::vector<int64_t>& numbers,
                               double& mean_loss) {
    PairWeights weights = {.pair = 1.0f / static_cast<float>(numbers.size())};
    int64_t own_tokens = 0;
    for (const int64_t i : numbers)
      own_tokens += pairs_.examples.length_of_chosen(static_cast<size_t>(i));
    if (loss.name == api::LossName::kOrpo) weights.own = 1.0f / static_cast<float>(own_tokens);
    const std::vector<api::Datum> data = read_pairs(pairs_.examples, numbers, weights);
    api::Batch batch = {.gradients = api::Gradients::kAdapters};
    for (const api::Datum& datum : data)
      batch.sequences.push_back({.datum = &datum, .slot = slot_});
    mark_as_pairs(batch.sequences, loss, references_);
    const api::BatchResult result = runner_->run(batch);
    mean_loss = result.loss_sum;
    PairScore score;
    add_pair_results(batch.sequences, result.sequences, score);
    return score;
  }

  // Drops them.
  void expect_gradients_of(const std::string& prefix) {
    const SafetensorsFile gradients(golden_ + "/gradients.safetensors");
    model::LoraAdapter& adapter = engine_->adapter(slot_);
    double error = 0, norm = 0;
    size_t count = 0;
    for (const model::AdapterTensor& tensor : model::adapter_tensors(adapter)) {
      const model::LoraModule& module = adapter.modules()[tensor.module];
      std::vector<float> got(static_cast<size_t>(tensor.shape.num_elements()));
      std::vector<float> right(got.size());
      model::copy_to_stored(module, tensor, tensor.is_b ? module.d_b : module.d_a, got.data());
      const TensorInfo* info = gradients.find(prefix + tensor.name);
      ASSERT_NE(info, nullptr) << tensor.name;
      gradients.read_f32(*info, 0, std::ssize(right), right.data());
      for (size_t i = 0; i < got.size(); ++i) {
        const double off = static_cast<double>(got[i]) - static_cast<double>(right[i]);
        error += off * off;
        norm += static_cast<double>(right[i]) * static_cast<double>(right[i]);
      }
      count += got.size();
    }
    EXPECT_EQ(count, static_cast<size_t>(adapter.num_parameters()));
    EXPECT_GT(norm, 0.0);
    EXPECT_LT(std::sqrt(error / norm), kGradientBar);
    adapter.drop_gradients();
  }

  const std::string golden_;
  json::object expected_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<engine::Runner> runner_;
  api::AdapterSlot slot_ = {};
  data::Dataset pairs_;
  References references_;
};

TEST_F(PairScoring, LossesRewardsAndGradientsAreTrls) {
  for (const auto& [type, want] : expected_.at("losses").as_object()) {
    SCOPED_TRACE(std::string(type));
    const auto number = [&](const char* name) { return want.at(name).to_number<double>(); };
    double loss = 0;
    const PairScore score = run_with_gradients(loss_of(type), {0, 1, 2, 3}, loss);
    EXPECT_NEAR(loss, number("loss"), kRewardBar * std::max(1.0, number("loss")));
    EXPECT_NEAR(score.chosen(), number("rewards/chosen"), kRewardBar);
    EXPECT_NEAR(score.rejected(), number("rewards/rejected"), kRewardBar);
    EXPECT_NEAR(score.margin(), number("rewards/margins"), kRewardBar);
    EXPECT_EQ(score.accuracy(), number("rewards/accuracies"));
    expect_gradients_of(std::string(type) + "/");
  }
}

// Each step moves the weights by its learning rate in the direction of its gradients' signs, so
// that what these are off by adds up.
TEST_F(PairScoring, ThirtyStepsAreTrls) {
  const json::array& steps = expected_.at("steps").as_array();
  ASSERT_EQ(steps.size(), 30u);
  const double lr = expected_.at("lr").to_number<double>();
  for (size_t step = 0; step < steps.size(); ++step) {
    const auto first = static_cast<int64_t>(2 * step % 4);
    double loss = 0;
    const PairScore score = run_with_gradients(loss_of("sigmoid"), {first, first + 1}, loss);
    EXPECT_NEAR(loss, steps[step].at("loss").to_number<double>(), 2e-3) << step;
    EXPECT_NEAR(score.margin(), steps[step].at("margin").to_number<double>(), 1e-2) << step;
    runner_->step(slot_, {.lr = lr});
  }
}

TEST_F(PairScoring, AModelIsRightOfHalfOfPairsAgainstItself) {
  const PairScore score = score_pairs(*runner_, std::vector{api::AdapterSlot::kBase}, pairs_, 64,
                                      loss_of("sigmoid"), references_)
                              .front()
                              .total;
  EXPECT_EQ(score.num_pairs, 4);
  EXPECT_EQ(score.margin(), 0.0);
  EXPECT_EQ(score.accuracy(), 0.5);
  EXPECT_FLOAT_EQ(static_cast<float>(score.loss()), std::log(2.0f));
}

// A file of references is found again, also one of which a kill has left half a record; another
// model's sums are not.
TEST_F(PairScoring, ReferencesStayInTheirFile) {
  const std::string path = ::testing::TempDir() + "strata_references.bin";
  remove_file(path);
  References first(path, 7, /*writes=*/true);
  add_references(*runner_, slot_, pairs_.examples, 64, first, [](int64_t) {});
  const data::Example answer = pairs_.examples.pair(2).rejected;
  EXPECT_NE(first.of(answer), references_.of(answer));
  EXPECT_EQ(count_without_reference(pairs_.examples, References(path, 7, false)), 0);
  EXPECT_EQ(References(path, 7, false).of(answer), first.of(answer));
  EXPECT_EQ(count_without_reference(pairs_.examples, References(path, 8, false)), 4);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 5);
  References torn(path, 7, /*writes=*/true);
  EXPECT_EQ(count_without_reference(pairs_.examples, torn), 1);
  int64_t made = 0;
  add_references(*runner_, slot_, pairs_.examples, 64, torn, [&](int64_t count) { made = count; });
  EXPECT_EQ(made, 1);
  const References whole(path, 7, false);
  for (size_t i = 0; i < pairs_.examples.size(); ++i) {
    EXPECT_EQ(whole.of(pairs_.examples.pair(i).chosen), first.of(pairs_.examples.pair(i).chosen));
    EXPECT_EQ(whole.of(pairs_.examples.pair(i).rejected),
              first.of(pairs_.examples.pair(i).rejected));
  }
}

class OrpoScoring : public PairScoring {
 protected:
  OrpoScoring() : PairScoring("orpo") {}
  [[nodiscard]] api::Loss loss() const {
    return loss_of_pairs({.loss = "orpo", .beta = expected_.at("beta").to_number<double>()});
  }
};

// Rewards are means over an answer's tokens, times beta; TRL's odds are float32.
TEST_F(OrpoScoring, LossRewardsAndGradientsAreTrls) {
  const double bar = 2 * 4e-6 * expected_.at("beta").to_number<double>();
  const json::object& want = expected_.at("loss").as_object();
  const auto number = [&](const char* name) { return want.at(name).to_number<double>(); };
  double mean_loss = 0;
  const PairScore score = run_with_gradients(loss(), {0, 1, 2, 3}, mean_loss);
  EXPECT_NEAR(mean_loss, number("loss"), bar * number("loss"));
  EXPECT_NEAR(score.nll(), number("nll_loss"), bar);
  EXPECT_NEAR(score.chosen(), number("rewards/chosen"), bar);
  EXPECT_NEAR(score.rejected(), number("rewards/rejected"), bar);
  EXPECT_NEAR(score.margin(), number("rewards/margins"), bar);
  EXPECT_EQ(score.accuracy(), number("rewards/accuracies"));
  expect_gradients_of("");
  // What an evaluation makes of the same pairs, whatever its passes.
  for (const int64_t pass_tokens : {16, 4096}) {
    const PairScore total =
        score_pairs(*runner_, std::vector{slot_}, pairs_, pass_tokens, loss(), References())
            .front()
            .total;
    EXPECT_NEAR(total.loss(), number("loss"), bar * number("loss"));
    EXPECT_EQ(total.nll(), score.nll());
    EXPECT_EQ(total.margin(), score.margin());
  }
}

TEST_F(OrpoScoring, ThirtyStepsAreTrls) {
  const json::array& steps = expected_.at("steps").as_array();
  ASSERT_EQ(steps.size(), 30u);
  const double beta = expected_.at("beta").to_number<double>();
  for (size_t step = 0; step < steps.size(); ++step) {
    const auto first = static_cast<int64_t>(2 * step % 4);
    double mean_loss = 0;
    const PairScore score = run_with_gradients(loss(), {first, first + 1}, mean_loss);
    EXPECT_NEAR(mean_loss, steps[step].at("loss").to_number<double>(), 2e-3) << step;
    EXPECT_NEAR(score.margin(), steps[step].at("margin").to_number<double>(), 1e-2 * beta) << step;
    runner_->step(slot_, {.lr = expected_.at("lr").to_number<double>()});
  }
}

}  // namespace
}  // namespace strata::apps
