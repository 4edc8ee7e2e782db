// SPDX-License-Identifier: Apache-2.0
#include "apps/export/perplexity.h"

#include <cmath>

#include "apps/setup/engine_setup.h"
#include "apps/setup/text_stack.h"
#include "data/batch_plan.h"
#include "engine/engine.h"

namespace strata::apps {
namespace {

constexpr int64_t kMaxLength = 4096;
constexpr int64_t kPassTokens = 2048;

}  // namespace

data::Dataset read_examples(const std::string& path, const std::string& model) {
  const TextStack text(model);
  const auto render = [&](const std::string& messages, const std::string& tools, bool with_prompt) {
    return text.render(
        {.messages = messages, .tools = tools, .add_generation_prompt = with_prompt});
  };
  const data::ExampleContext context{.tokenizer = text.tokenizer(),
                                     .end_tokens = text.end_tokens(),
                                     .render = render,
                                     .train_on = data::TrainOn::kLast};
  return data::read_dataset(path, context, kMaxLength);
}

double perplexity(const std::string& model, const std::string& adapter, const data::Dataset& data,
                  int threads) {
  const std::unique_ptr<engine::Engine> engine = make_engine({.model = model, .threads = threads});
  const api::AdapterSlot slot =
      adapter.empty() ? api::AdapterSlot() : engine->load_adapter(adapter);
  std::vector<int64_t> all, lengths;
  for (const data::Example& example : data.examples) {
    all.push_back(std::ssize(all));
    lengths.push_back(std::ssize(example.tokens));
  }
  double sum = 0.0;
  for (const auto& pass : data::cut_by_tokens(all, lengths, kPassTokens)) {
    std::vector<api::Datum> datums;
    for (const int64_t i : pass) {
      const data::Example& example = data.examples[static_cast<size_t>(i)];
      api::Datum& datum =
          datums.emplace_back(api::Datum{.tokens = example.tokens, .targets = example.targets});
      datum.inputs[api::LossInput::kWeights] = example.weights;
    }
    api::Batch batch = {.gradients = api::Gradients::kNone};
    for (const api::Datum& datum : datums) {
      batch.sequences.push_back({.datum = &datum, .slot = slot});
    }
    sum += engine->run(batch).loss_sum;
  }
  return std::exp(sum / static_cast<double>(data.num_trained));
}

}  // namespace strata::apps
