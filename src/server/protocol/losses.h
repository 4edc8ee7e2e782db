// A loss as a client names it, from the rows of api/losses.h: faults are told as the protocol has
// them.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "api/losses.h"

namespace strata::server {

// Throws Error naming the loss when it is unknown or refused.
const api::LossRow& need_loss(std::string_view name);

// Fills defaults; an unknown option, a missing one without a default (dro's beta) or one out of
// order is an Error.
api::Loss make_loss(const api::LossRow& row, const std::map<std::string, double>& config);

}  // namespace strata::server
