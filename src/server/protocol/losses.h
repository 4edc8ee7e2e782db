// The losses by name: their inputs, options and the protocol's defaults (tinker: thresholds bound
// the ratio itself). The defaults here are the server's; other callers have their own.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "api/batch.h"

namespace strata::server {

struct LossRow {
  std::string_view name;
  api::LossName loss;
  std::vector<std::string_view> inputs;   // besides target_tokens; all required
  std::vector<std::string_view> options;  // names of loss_fn_config
};

// Throws Error naming the loss when it is unknown or refused.
const LossRow& find_loss(std::string_view name);

// Fills defaults; an unknown option, a missing one without a default (dro's beta) or one out of
// range is an Error.
api::Loss make_loss(const LossRow& row, const std::map<std::string, double>& config);

}  // namespace strata::server
