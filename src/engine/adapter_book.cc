// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter_book.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"

namespace strata::engine {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 8;  // shares multiply it

}  // namespace

AdapterBook::AdapterBook(const AdapterLimits& limits)
    : limits_(limits),
      slots_(limits.max_models),
      bytes_(limits.max_bytes > 0 ? limits.max_bytes : kNoLimit) {}

void AdapterBook::refuse(const std::string& what) const {
  std::set<api::SessionId> sessions;
  for (const auto& [model, place] : models_) sessions.insert(place.session);
  throw Error(ErrorCode::kResourceExhausted,
              fmt::format("create_model: {}; {} models of {} sessions are alive and take {} MiB",
                          what, models_.size(), sessions.size(), num_bytes() >> 20));
}

int64_t AdapterBook::count_of(const api::TenantId& tenant) const {
  return std::ranges::count(models_, tenant, [](const auto& model) { return model.second.tenant; });
}

void AdapterBook::check_rank(int64_t rank) const {
  if (rank >= 1 && rank <= limits_.max_rank) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("create_model: lora_config.rank: got {}, want 1 to {} (--max-rank)", rank,
                          limits_.max_rank));
}

AdapterBook::Place AdapterBook::reserve_place(const api::Command& command, int64_t bytes) {
  const std::string& tenant = command.tenant.text;
  check_num_models(command.tenant);
  Place place = {.tenant = command.tenant,
                 .session = command.session,
                 .slot = slots_.take(tenant, 1),
                 .bytes = bytes_.take(tenant, bytes)};
  if (!place.slot) refuse_for_slots(command.tenant);
  if (!place.bytes) refuse_for_bytes(bytes);
  return place;
}

void AdapterBook::check_num_models(const api::TenantId& tenant) const {
  if (num_models() >= limits_.max_models) {
    refuse(
        fmt::format("no slot is free: unload a model, finish a session or raise --max-adapters "
                    "{}",
                    limits_.max_models));
  }
  const int64_t count = count_of(tenant);
  if (limits_.max_models_per_tenant > 0 && count >= limits_.max_models_per_tenant) {
    refuse(fmt::format("this tenant has its {} models (--max-adapters-per-tenant)", count));
  }
}

void AdapterBook::refuse_for_slots(const api::TenantId& tenant) const {
  refuse(
      fmt::format("this tenant has {} models, and the free slots are for other tenants: unload "
                  "a model, finish a session or raise --max-adapters {}",
                  count_of(tenant), limits_.max_models));
}

void AdapterBook::refuse_for_bytes(int64_t bytes) const {
  const int64_t left = limits_.max_bytes - num_bytes();
  refuse(
      fmt::format("the model takes {} MiB and {} are left{}: unload a model, use a smaller rank "
                  "or raise --memory",
                  bytes >> 20, left >> 20, bytes > left ? "" : " for other tenants"));
}

}  // namespace strata::engine
