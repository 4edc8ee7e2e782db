// SPDX-License-Identifier: Apache-2.0
// What a request is told when there is no space for it, or none ever.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "server/http/message.h"
#include "server/store/state/store.h"
#include "server/tinker/refusals.h"
#include "server/tinker/usage.h"

namespace strata::server {

// A result that is known to take `bytes`, for which the charge's tenant has no space: 429, or 400
// when it never fits.
Response over_budget_response(const Charge& charge, int64_t bytes);
// The queue is full: 429, but 400 for the making of a model, which nobody sends again.
Response queue_full_response(bool makes_model);
// What would take more than the tenant's disk quota; else so much of it, where there is one, is
// reserved as long as `quota` lives.
std::optional<Response> reserve_disk_quota(Usage& usage, StateStore& store,
                                           const std::string& tenant, int64_t bytes,
                                           std::shared_ptr<void>& quota);
// A command that no queue has space for.
std::string too_large_text();

}  // namespace strata::server
