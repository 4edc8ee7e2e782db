// SPDX-License-Identifier: Apache-2.0
// The losses as rows: what each is called, what it reads besides the targets, which options it
// takes. Server, probe, train, checks and hashes loop over them; a row's formula is
// train/losses/<name>.cc. A new loss is an enumerator and a row here, its formula and its test.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>

namespace strata::api {

// Columns of a datum, one number for each token; of weights one for each target.
enum class LossInput : uint8_t {
  kWeights,
  kLogprobs,  // of the sampler
  kAdvantages,
  kSequenceRatioMask,
  kRecordedMask,  // 1 where a token was sampled and recorded
};

struct LossInputRow {
  LossInput id;
  std::string_view name;  // in loss_fn_inputs and in a request of probe
  float otherwise;        // where a datum lacks it
  bool is_recorded;       // the server takes it from its records, never from a client
};

constexpr LossInputRow kLossInputs[] = {
    {LossInput::kWeights, "weights", 1.0f, false},
    {LossInput::kLogprobs, "logprobs", 0.0f, false},
    {LossInput::kAdvantages, "advantages", 0.0f, false},
    {LossInput::kSequenceRatioMask, "sequence_ratio_mask", 1.0f, false},
    {LossInput::kRecordedMask, "recorded_mask", 1.0f, true},
};
constexpr size_t kNumLossInputs = std::size(kLossInputs);

// One value for each loss input.
template <typename T>
struct ByLossInput {
  std::array<T, kNumLossInputs> values = {};

  constexpr T& operator[](LossInput input) { return values[static_cast<size_t>(input)]; }
  constexpr const T& operator[](LossInput input) const {
    return values[static_cast<size_t>(input)];
  }
  friend bool operator==(const ByLossInput&, const ByLossInput&) = default;
};

enum class LossName : uint8_t {
  kCrossEntropy,
  kImportanceSampling,
  kPpo,
  kCispo,
  kDro,
  kGspo,
  kStableReinforce,
  kDpoSigmoid,
  kDpoSigmoidNorm,
  kDpoRobust,
  kDpoHinge,
  kDpoIpo,
  kOrpo,
};

// Any finite number.
struct LossOptionRow {
  std::string_view name;
  double otherwise = 0.0;    // the protocol's default; of a required one an example
  bool is_required = false;  // by the protocol, which has no default for it
};

constexpr size_t kMaxLossOptions = 2;

struct LossRow {
  LossName id;
  std::string_view name;
  std::span<const LossInput> inputs;  // all needed, but weights only by the protocol
  std::span<const LossOptionRow> options = {};
  bool options_ascend = false;                        // none is above the next one
  std::optional<LossInput> mean_over = std::nullopt;  // a mask: the loss takes a mean over it
  std::string_view metric = {};                       // set to 1 in results, to tell of it
  // The loss is of two neighbours of a batch together, the answer that was chosen and behind it the
  // one that was rejected, each with what the reference model gives it. No request names it.
  bool of_pairs = false;
  // Whether the loss reads what the server recorded when it sampled.
  [[nodiscard]] constexpr bool reads_records() const {
    for (const LossInput input : inputs) {
      if (kLossInputs[static_cast<size_t>(input)].is_recorded) return true;
    }
    return false;
  }
};

namespace losses {

using enum LossInput;

constexpr LossInput kWeightsOnly[] = {kWeights};
constexpr LossInput kPolicy[] = {kLogprobs, kAdvantages};
constexpr LossInput kMaskedPolicy[] = {kLogprobs, kAdvantages, kSequenceRatioMask};
// What a token's own loss weighs, and which targets the pair's loss is of.
constexpr LossInput kPairWithOwnLoss[] = {kWeights, kAdvantages, kSequenceRatioMask};
constexpr LossInput kRecordedPolicy[] = {kLogprobs, kAdvantages, kRecordedMask};

// Thresholds bound the ratio itself.
constexpr LossOptionRow kPpoClip[] = {{"clip_low_threshold", 0.8}, {"clip_high_threshold", 1.2}};
constexpr LossOptionRow kCispoClip[] = {{"clip_low_threshold", 0.0}, {"clip_high_threshold", 4.0}};
constexpr LossOptionRow kGspoClip[] = {{"clip_low_threshold", 0.9997},
                                       {"clip_high_threshold", 1.0004}};
constexpr LossOptionRow kBeta[] = {{"beta", 0.05, /*is_required=*/true}};
constexpr LossOptionRow kKlCoeff[] = {{"kl_coeff"}};
constexpr LossOptionRow kDpo[] = {{"beta", 0.1}};
constexpr LossOptionRow kSmoothedDpo[] = {{"beta", 0.1}, {"label_smoothing"}};

}  // namespace losses

constexpr LossRow kLosses[] = {
    {LossName::kCrossEntropy, "cross_entropy", losses::kWeightsOnly},
    {LossName::kImportanceSampling, "importance_sampling", losses::kPolicy},
    {LossName::kPpo, "ppo", losses::kPolicy, losses::kPpoClip, /*options_ascend=*/true},
    {LossName::kCispo, "cispo", losses::kPolicy, losses::kCispoClip, /*options_ascend=*/true},
    {LossName::kDro, "dro", losses::kPolicy, losses::kBeta},
    {LossName::kGspo, "gspo", losses::kMaskedPolicy, losses::kGspoClip, /*options_ascend=*/true,
     LossInput::kSequenceRatioMask},
    {.id = LossName::kStableReinforce,
     .name = "stable_reinforce",
     .inputs = losses::kRecordedPolicy,
     .options = losses::kKlCoeff,
     .metric = "stable_reinforce_strata_formula:max"},
    {.id = LossName::kDpoSigmoid,
     .name = "dpo_sigmoid",
     .inputs = losses::kWeightsOnly,
     .options = losses::kDpo,
     .of_pairs = true},
    {.id = LossName::kDpoSigmoidNorm,
     .name = "dpo_sigmoid_norm",
     .inputs = losses::kWeightsOnly,
     .options = losses::kDpo,
     .of_pairs = true},
    {.id = LossName::kDpoRobust,
     .name = "dpo_robust",
     .inputs = losses::kWeightsOnly,
     .options = losses::kSmoothedDpo,
     .of_pairs = true},
    {.id = LossName::kDpoHinge,
     .name = "dpo_hinge",
     .inputs = losses::kWeightsOnly,
     .options = losses::kDpo,
     .of_pairs = true},
    {.id = LossName::kDpoIpo,
     .name = "dpo_ipo",
     .inputs = losses::kWeightsOnly,
     .options = losses::kDpo,
     .of_pairs = true},
    {.id = LossName::kOrpo,
     .name = "orpo",
     .inputs = losses::kPairWithOwnLoss,
     .options = losses::kDpo,
     .of_pairs = true},
};
constexpr size_t kNumLosses = std::size(kLosses);

constexpr const LossRow& row_of(LossName name) { return kLosses[static_cast<size_t>(name)]; }
constexpr const LossInputRow& row_of(LossInput input) {
  return kLossInputs[static_cast<size_t>(input)];
}

// The row of a loss that a request may name; null when there is none.
constexpr const LossRow* find_loss(std::string_view name) {
  for (const LossRow& row : kLosses) {
    if (row.name == name && !row.of_pairs) return &row;
  }
  return nullptr;
}
constexpr std::optional<size_t> option_index(const LossRow& row, std::string_view option) {
  for (size_t i = 0; i < row.options.size(); ++i) {
    if (row.options[i].name == option) return i;
  }
  return std::nullopt;
}

// A loss with its options, in the order of its row.
struct Loss {
  LossName name = LossName::kCrossEntropy;
  std::array<float, kMaxLossOptions> options = {};
  friend bool operator==(const Loss&, const Loss&) = default;
};

// The loss with its row's values; those of required options are examples, which are replaced.
constexpr Loss default_loss(LossName name) {
  Loss loss = {.name = name};
  const LossRow& row = row_of(name);
  for (size_t i = 0; i < row.options.size(); ++i)
    loss.options[i] = static_cast<float>(row.options[i].otherwise);
  return loss;
}

// Each row stands at its number.
static_assert([] {
  for (size_t i = 0; i < kNumLossInputs; ++i) {
    if (static_cast<size_t>(kLossInputs[i].id) != i) return false;
  }
  for (size_t i = 0; i < kNumLosses; ++i) {
    if (static_cast<size_t>(kLosses[i].id) != i) return false;
    if (kLosses[i].options.size() > kMaxLossOptions) return false;
  }
  return true;
}());

}  // namespace strata::api
