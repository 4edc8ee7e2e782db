#include "server/protocol/losses.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace strata::server {
namespace {

using enum api::LossName;

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, "forward_backward: " + what);
}

const std::vector<LossRow>& rows() {
  static const std::vector<LossRow> kRows = {
      {"cross_entropy", kCrossEntropy, {"weights"}, {}},
      {"importance_sampling", kImportanceSampling, {"logprobs", "advantages"}, {}},
      {"ppo", kPpo, {"logprobs", "advantages"}, {"clip_low_threshold", "clip_high_threshold"}},
      {"cispo", kCispo, {"logprobs", "advantages"}, {"clip_low_threshold", "clip_high_threshold"}},
      {"dro", kDro, {"logprobs", "advantages"}, {"beta"}},
      {"gspo",
       kGspo,
       {"logprobs", "advantages", "sequence_ratio_mask"},
       {"clip_low_threshold", "clip_high_threshold"}},
      {"stable_reinforce", kStableReinforce, {"logprobs", "advantages"}, {"kl_coeff"}},
  };
  return kRows;
}

struct Clip {
  double low, high;
};

Clip default_clip(api::LossName loss) {
  switch (loss) {
    case kCispo:
      return {0.0, 4.0};
    case kGspo:
      return {0.9997, 1.0004};
    case kCrossEntropy:
    case kImportanceSampling:
    case kPpo:
    case kDro:
    case kStableReinforce:
      return {0.8, 1.2};
  }
  return {0.8, 1.2};
}

double option(const std::map<std::string, double>& config, const char* name, double otherwise) {
  const auto found = config.find(name);
  return found == config.end() ? otherwise : found->second;
}

}  // namespace

const LossRow& find_loss(std::string_view name) {
  std::string known;
  for (const LossRow& row : rows()) {
    if (row.name == name) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  if (name == "custom") fail("loss_fn 'custom' is not supported: run custom losses in the client");
  fail(fmt::format("unknown loss_fn '{}'; known: {}", name.substr(0, 100), known));
}

api::Loss make_loss(const LossRow& row, const std::map<std::string, double>& config) {
  for (const auto& [name, value] : config) {
    if (std::find(row.options.begin(), row.options.end(), name) == row.options.end()) {
      fail(fmt::format("loss_fn_config: {} has no option '{}'", row.name, name.substr(0, 100)));
    }
    if (!std::isfinite(value)) fail(fmt::format("loss_fn_config: {} is not finite", name));
  }
  const Clip clip = default_clip(row.loss);
  api::Loss loss;
  loss.name = row.loss;
  loss.clip_low = static_cast<float>(option(config, "clip_low_threshold", clip.low));
  loss.clip_high = static_cast<float>(option(config, "clip_high_threshold", clip.high));
  if (loss.clip_low > loss.clip_high) {
    fail(fmt::format("loss_fn_config: clip_low_threshold {} is above clip_high_threshold {}",
                     loss.clip_low, loss.clip_high));
  }
  if (row.loss == kDro && !config.contains("beta")) {
    fail("loss_fn_config: dro needs 'beta' (for example 0.05); it has no default");
  }
  loss.beta = static_cast<float>(option(config, "beta", 0.0));
  loss.kl_coeff = static_cast<float>(option(config, "kl_coeff", 0.0));
  return loss;
}

}  // namespace strata::server
