// SPDX-License-Identifier: Apache-2.0
#include "setup/scoring.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "data/batch_plan.h"

namespace strata::apps {
namespace {

struct PassData {
  std::vector<api::Datum> data;
  std::vector<size_t> files;  // of each
};

PassData read_pass(const data::Dataset& dataset, const std::vector<int64_t>& pass) {
  PassData out;
  for (const int64_t i : pass) {
    out.data.push_back(datum_of(dataset.examples[static_cast<size_t>(i)]));
    out.files.push_back(file_index_of(dataset, dataset.examples.order()[static_cast<size_t>(i)]));
  }
  return out;
}

// All of the pass for each slot, one slot behind the other.
api::Batch batch_of(const PassData& pass, std::span<const api::AdapterSlot> slots,
                    WantTop want_top) {
  api::Batch batch = {.want_top = want_top == WantTop::kYes};
  for (const api::AdapterSlot slot : slots) {
    for (const api::Datum& datum : pass.data)
      batch.sequences.push_back({.datum = &datum, .slot = slot});
  }
  return batch;
}

void add_trained_counts(const api::Datum& datum, const api::SequenceResult& result, Score& score) {
  const std::vector<float>& weights = datum.inputs[api::LossInput::kWeights];
  for (size_t t = 0; t < weights.size(); ++t) {
    if (weights[t] == 0.0f) continue;
    ++score.num_trained;
    if (!result.top_logprobs.empty() && result.logprobs[t] >= result.top_logprobs[t]) {
      ++score.num_top;
    }
  }
}

// Each pass is a sum of its own, and so is each file's part of it.
void add_losses(const PassData& pass, std::span<const api::SequenceResult> results,
                SlotScore& score) {
  double sum = 0, of_file = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    for (const float loss : results[i].losses) {
      sum += static_cast<double>(loss);
      of_file += static_cast<double>(loss);
    }
    const bool is_last_of_file = i + 1 == results.size() || pass.files[i + 1] != pass.files[i];
    if (is_last_of_file) score.files[pass.files[i]].loss_sum += std::exchange(of_file, 0.0);
  }
  score.total.loss_sum += sum;
}

void add_counts(const PassData& pass, std::span<const api::SequenceResult> results,
                SlotScore& score) {
  for (size_t i = 0; i < results.size(); ++i) {
    add_trained_counts(pass.data[i], results[i], score.files[pass.files[i]]);
    add_trained_counts(pass.data[i], results[i], score.total);
  }
}

}  // namespace

size_t file_index_of(const data::Dataset& dataset, int64_t number) {
  const auto behind =
      std::upper_bound(dataset.files.begin(), dataset.files.end(), number,
                       [](int64_t left, const data::DataFile& file) { return left < file.first; });
  return static_cast<size_t>(behind - dataset.files.begin()) - 1;
}

void check_tokens_in_vocabulary(const data::Dataset& dataset, int64_t vocab_size) {
  const data::ExampleStore& store = *dataset.examples.store();
  if (store.highest_token() < vocab_size) return;
  const data::DataFile& file =
      dataset.files[file_index_of(dataset, store.example_of_highest_token())];
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: token id {}, the model's vocabulary has {}; is the tokenizer "
                          "another model's?",
                          file.file->shown(), store.highest_token(), vocab_size));
}

api::Datum datum_of(data::Example example) {
  api::Datum datum = {.tokens = std::move(example.tokens), .targets = std::move(example.targets)};
  datum.inputs[api::LossInput::kWeights] = std::move(example.weights);
  return datum;
}

std::vector<SlotScore> score_dataset(engine::Runner& pipeline,
                                     std::span<const api::AdapterSlot> slots,
                                     const data::Dataset& dataset, int64_t pass_tokens,
                                     WantTop want_top) {
  const std::vector<int64_t> lengths = dataset.examples.lengths();
  std::vector<int64_t> all(lengths.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  std::vector<SlotScore> scores(slots.size());
  for (SlotScore& score : scores) score.files.resize(dataset.files.size());
  for (const auto& indices : data::cut_by_tokens(all, lengths, pass_tokens)) {
    const PassData pass = read_pass(dataset, indices);
    const api::BatchResult result = pipeline.run(batch_of(pass, slots, want_top));
    for (size_t s = 0; s < slots.size(); ++s) {
      const auto of_slot =
          std::span(result.sequences).subspan(s * pass.data.size(), pass.data.size());
      add_losses(pass, of_slot, scores[s]);
      add_counts(pass, of_slot, scores[s]);
    }
  }
  return scores;
}

}  // namespace strata::apps
