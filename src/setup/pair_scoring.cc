// SPDX-License-Identifier: Apache-2.0
#include "setup/pair_scoring.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/hash.h"
#include "data/batch_plan.h"
#include "setup/scoring.h"

namespace strata::apps {
namespace {

constexpr size_t kKeyBytes = sizeof(uint64_t), kRecordBytes = kKeyBytes + sizeof(float);
constexpr int64_t kMostFileBytes = int64_t{1} << 34;

struct AnswerSum {
  float logprobs = 0;
  int64_t num_targets = 0;
};

// Over the trained targets: a double, ascending, rounded once, as the loss of a pair has it.
AnswerSum sum_trained_logprobs(const api::Datum& datum, const api::SequenceResult& result) {
  const std::vector<float>& weights = datum.inputs[api::LossInput::kWeights];
  const std::vector<float>& mask = datum.inputs[api::LossInput::kSequenceRatioMask];
  double sum = 0.0;
  int64_t count = 0;
  for (size_t t = 0; t < weights.size(); ++t) {
    if (weights[t] == 0.0f || (!mask.empty() && mask[t] == 0.0f)) continue;
    sum += static_cast<double>(result.logprobs[t]);
    ++count;
  }
  return {static_cast<float>(sum), count};
}

bool is_orpo(const api::Loss& loss) { return loss.name == api::LossName::kOrpo; }

// The columns of an answer that is trained as orpo has it: all tokens of the chosen one.
void add_own_loss(float own, bool is_chosen, api::Datum& datum) {
  api::ByLossInput<std::vector<float>>& inputs = datum.inputs;
  std::vector<float>& weights = inputs[api::LossInput::kWeights];
  inputs[api::LossInput::kSequenceRatioMask] = weights;
  inputs[api::LossInput::kAdvantages].assign(weights.size(), is_chosen ? own : 0.0f);
  if (is_chosen) std::ranges::fill(weights, 1.0f);
}

data::Example example_of(const api::Datum& datum) {
  return {.tokens = datum.tokens,
          .targets = datum.targets,
          .weights = datum.inputs[api::LossInput::kWeights]};
}

bool lacks_reference(const data::ExamplePair& pair, const References& references) {
  return !references.has(pair.chosen) || !references.has(pair.rejected);
}

}  // namespace

api::Loss loss_of_pairs(const LossChoice& choice) {
  const std::string name = choice.loss == "dpo" ? "dpo_" + choice.type : choice.loss;
  for (const api::LossRow& row : api::kLosses) {
    if (!row.of_pairs || row.name != name) continue;
    api::Loss loss = api::default_loss(row.id);
    loss.options = {static_cast<float>(choice.beta), static_cast<float>(choice.label_smoothing)};
    return loss;
  }
  CHECK(false, name);
}

References::References(const std::string& path, uint64_t key, bool writes)
    : path_(path), key_(key), writes_(writes) {
  if (!file_exists(path)) return;
  const std::string bytes = read_file(path, kMostFileBytes);
  const size_t whole = bytes.size() / kRecordBytes * kRecordBytes;
  for (size_t at = 0; at < whole; at += kRecordBytes) {
    uint64_t of = 0;
    float sum = 0.0f;
    std::memcpy(&of, bytes.data() + at, kKeyBytes);
    std::memcpy(&sum, bytes.data() + at + kKeyBytes, sizeof(sum));
    sums_[of] = sum;
  }
  // A run that was killed while it wrote has left a part of a record.
  if (writes && whole < bytes.size() && ::truncate(path.c_str(), static_cast<off_t>(whole)) != 0)
    fail_io(path, "truncate");
}

uint64_t References::key_of(const data::Example& answer) const {
  Hash hash;
  hash.mix(key_);
  hash.mix_values(answer.tokens);
  hash.mix_values(answer.targets);
  for (const float weight : answer.weights) hash.mix(weight != 0.0f ? 1 : 0);
  return hash.value();
}

bool References::has(const data::Example& answer) const { return sums_.contains(key_of(answer)); }

float References::of(const data::Example& answer) const {
  const auto found = sums_.find(key_of(answer));
  CHECK(found != sums_.end());
  return found->second;
}

void References::add(const data::Example& answer, float sum) {
  const uint64_t key = key_of(answer);
  sums_[key] = sum;
  if (!writes_) return;
  waiting_.append(reinterpret_cast<const char*>(&key), kKeyBytes);
  waiting_.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

void References::flush() {
  if (waiting_.empty()) return;
  const OpenFile file(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (file.fd < 0) fail_io(path_, "open");
  write_all(file.fd, std::as_bytes(std::span(waiting_)), path_);
  if (::fsync(file.fd) != 0) fail_io(path_, "fsync");
  waiting_.clear();
}

int64_t count_without_reference(const data::Examples& pairs, const References& references) {
  int64_t count = 0;
  for (size_t i = 0; i < pairs.size(); ++i)
    count += lacks_reference(pairs.pair(i), references) ? 1 : 0;
  return count;
}

void add_references(engine::Runner& pipeline, api::AdapterSlot slot, const data::Examples& pairs,
                    int64_t pass_tokens, References& references, FunctionRef<void(int64_t)> done) {
  std::vector<int64_t> missing;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (lacks_reference(pairs.pair(i), references)) missing.push_back(static_cast<int64_t>(i));
  }
  int64_t count = 0;
  for (const auto& pass : data::cut_by_tokens(missing, pairs.lengths(), pass_tokens)) {
    const std::vector<api::Datum> data = read_pairs(pairs, pass);
    api::Batch batch;
    for (const api::Datum& datum : data) batch.sequences.push_back({.datum = &datum, .slot = slot});
    const api::BatchResult result = pipeline.run(batch);
    for (size_t s = 0; s < data.size(); ++s)
      references.add(example_of(data[s]),
                     sum_trained_logprobs(data[s], result.sequences[s]).logprobs);
    references.flush();
    count += std::ssize(pass);
    done(count);
  }
}

std::vector<api::Datum> read_pairs(const data::Examples& pairs, const std::vector<int64_t>& numbers,
                                   const PairWeights& weights) {
  std::vector<api::Datum> data;
  for (const int64_t i : numbers) {
    data::ExamplePair pair = pairs.pair(static_cast<size_t>(i));
    data.push_back(datum_of(std::move(pair.chosen)));
    data.push_back(datum_of(std::move(pair.rejected)));
  }
  for (size_t s = 0; s < data.size(); ++s) {
    if (weights.own) add_own_loss(*weights.own, /*is_chosen=*/s % 2 == 0, data[s]);
    for (float& weight : data[s].inputs[api::LossInput::kWeights]) weight *= weights.pair;
  }
  return data;
}

void mark_as_pairs(std::span<api::Sequence> sequences, const api::Loss& loss,
                   const References& references) {
  for (api::Sequence& sequence : sequences) {
    sequence.loss = loss;
    if (!is_orpo(loss)) sequence.reference = references.of(example_of(*sequence.datum));
  }
}

void add_pair_results(std::span<const api::Sequence> sequences,
                      std::span<const api::SequenceResult> results, PairScore& score) {
  const auto reward_of = [&](size_t s) {
    const AnswerSum sum = sum_trained_logprobs(*sequences[s].datum, results[s]);
    const auto beta = static_cast<double>(sequences[s].loss.options[0]);
    const auto logprobs = static_cast<double>(sum.logprobs);
    if (is_orpo(sequences[s].loss)) return beta * logprobs / static_cast<double>(sum.num_targets);
    return beta * (logprobs - static_cast<double>(sequences[s].reference));
  };
  for (size_t s = 0; s < sequences.size(); s += 2) {
    const double chosen = reward_of(s), rejected = reward_of(s + 1);
    ++score.num_pairs;
    score.chosen_sum += chosen;
    score.rejected_sum += rejected;
    score.num_right += chosen > rejected ? 1.0 : chosen == rejected ? 0.5 : 0.0;
    for (const float loss : results[s].losses) score.loss_sum += static_cast<double>(loss);
    if (!is_orpo(sequences[s].loss)) continue;
    for (const float logprob : results[s].logprobs) score.nll_sum -= static_cast<double>(logprob);
    score.num_nll_tokens += std::ssize(results[s].logprobs);
  }
}

std::vector<PairScores> score_pairs(engine::Runner& pipeline,
                                    std::span<const api::AdapterSlot> slots,
                                    const data::Dataset& dataset, int64_t pass_tokens,
                                    const api::Loss& loss, const References& references) {
  const std::vector<int64_t> lengths = dataset.examples.lengths();
  std::vector<int64_t> all(lengths.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  std::vector<PairScores> scores(slots.size());
  for (PairScores& score : scores) score.files.resize(dataset.files.size());
  for (const auto& pass : data::cut_by_tokens(all, lengths, pass_tokens)) {
    PairWeights weights;
    if (is_orpo(loss)) weights.own = 0.0f;  // its sum is made of the logprobs
    const std::vector<api::Datum> data = read_pairs(dataset.examples, pass, weights);
    for (size_t slot = 0; slot < slots.size(); ++slot) {
      api::Batch batch;
      for (const api::Datum& datum : data)
        batch.sequences.push_back({.datum = &datum, .slot = slots[slot]});
      mark_as_pairs(batch.sequences, loss, references);
      const api::BatchResult result = pipeline.run(batch);
      add_pair_results(batch.sequences, result.sequences, scores[slot].total);
      for (size_t i = 0; i < pass.size(); ++i) {
        const int64_t number = dataset.examples.order()[static_cast<size_t>(pass[i])];
        add_pair_results(std::span(batch.sequences).subspan(2 * i, 2),
                         std::span(result.sequences).subspan(2 * i, 2),
                         scores[slot].files[file_index_of(dataset, number)]);
      }
    }
  }
  return scores;
}

}  // namespace strata::apps
