// SPDX-License-Identifier: Apache-2.0
// Bias, penalties and cuts beside transformers' logits processors and vLLM's formula, of which
// tools/golden/make_sampling_options.py wrote sampling_options.json.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "base/files.h"
#include "ops/choose_tokens.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/sampler.h"
#include "ops/ref/choose_tokens.h"

namespace strata::ops {
namespace {

namespace json = boost::json;

template <typename T>
std::vector<T> numbers(const json::value& array) {
  std::vector<T> out;
  for (const json::value& value : array.as_array()) out.push_back(value.to_number<T>());
  return out;
}

struct Case {
  explicit Case(const json::object& object)
      : logits(numbers<float>(object.at("logits"))),
        changed(numbers<float>(object.at("changed"))),
        prompt(numbers<int32_t>(object.at("prompt"))),
        answer(counts_of(numbers<int32_t>(object.at("answer")))) {
    for (const json::value& pair : object.at("logit_bias").as_array())
      bias.push_back({pair.at(0).to_number<int32_t>(), pair.at(1).to_number<float>()});
    for (const auto& [id, value] : object.at("probabilities").as_object())
      probabilities[std::stoi(std::string(id))] = value.to_number<double>();
    const auto number = [&](const char* name) { return object.at(name).to_number<float>(); };
    choice.params = {.temperature = number("temperature"),
                     .top_k = object.at("top_k").to_number<int64_t>(),
                     .top_p = number("top_p"),
                     .min_p = number("min_p"),
                     .seed = 3};
    choice.changes = bias;
    choice.penalties = {.repetition = number("repetition_penalty"),
                        .frequency = number("frequency_penalty"),
                        .presence = number("presence_penalty")};
    choice.before = {.prompt = prompt, .answer = answer};
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  std::vector<float> logits, changed;
  std::vector<int32_t> prompt;
  std::vector<TokenCount> answer;
  std::vector<LogitChange> bias;
  std::map<int32_t, double> probabilities;
  TokenChoice choice;
};

TEST(SamplingOptionsGolden, IsWhatTransformersAndVllmMakeOfIt) {
  const std::string path = std::string(STRATA_SOURCE_DIR) + "/tests/ops/sampling_options.json";
  const json::value golden = json::parse(read_file(path, 1 << 20));
  CpuBackend backend(choose_cpu_path(), 1);
  size_t num_cut = 0, num_changed = 0;
  for (const json::value& value : golden.at("cases").as_array()) {
    Case c(value.as_object());
    SCOPED_TRACE(json::serialize(value));
    const auto vocab = std::ssize(c.logits);
    num_cut += c.probabilities.size() < c.logits.size() ? 1 : 0;
    num_changed += c.changed != c.logits ? 1 : 0;
    // The reference.
    const std::vector<double> changed = ref::changed_logits(c.logits, c.choice);
    for (size_t i = 0; i < changed.size(); ++i)
      EXPECT_NEAR(changed[i], c.changed[i], 1e-6 * std::max(1.0, std::abs(changed[i])));
    const auto probabilities = ref::choice_probabilities(changed, c.choice.params);
    ASSERT_EQ(probabilities.size(), c.probabilities.size());
    for (const auto& [id, probability] : probabilities)
      EXPECT_NEAR(probability, c.probabilities.at(id), 1e-6);
    // The op, to the bit: what it chooses is chosen from the golden's fp32 logits.
    const Scratch::Mark mark(backend.scratch());
    const TensorView row = backend.scratch().take(DType::kF32, {1, vocab});
    std::copy(c.logits.begin(), c.logits.end(), row.f32());
    for (const float temperature : {c.choice.params.temperature, 0.0f}) {
      for (uint64_t step = 0; step < 100; ++step) {
        TokenChoice choice = c.choice;
        choice.params.temperature = temperature;
        choice.step_index = step;
        TokenChoice* const choices[] = {&choice};
        choose_tokens(backend, row, {}, choices);
        EXPECT_EQ(choice.error, "");
        EXPECT_EQ(choice.token, cpu::choose_token(c.changed, choice.params, step));
        if (temperature > 0) {
          EXPECT_TRUE(c.probabilities.contains(choice.token)) << choice.token;
        }
      }
    }
  }
  EXPECT_GT(num_cut, 30u);
  EXPECT_GT(num_changed, 50u);
}

}  // namespace
}  // namespace strata::ops
