// SPDX-License-Identifier: Apache-2.0
#include "engine/adapter_book.h"

#include <fmt/format.h>

#include <set>

#include "base/error.h"

namespace strata::engine {

std::string AdapterBook::usage() const {
  std::set<api::SessionId> sessions;
  for (const auto& [model, entry] : models_) sessions.insert(entry.session);
  return fmt::format("{} models of {} sessions are alive and take {} MiB", models_.size(),
                     sessions.size(), num_bytes_ >> 20);
}

void AdapterBook::check(const api::Command& command, int64_t rank, int64_t bytes) const {
  if (rank < 1 || rank > limits_.max_rank) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("create_model: lora_config.rank: got {}, want 1 to {} (--max-rank)",
                            rank, limits_.max_rank));
  }
  const auto full = [&](const std::string& what) {
    throw Error(ErrorCode::kResourceExhausted, fmt::format("create_model: {}; {}", what, usage()));
  };
  if (num_models() >= limits_.max_models) {
    full(fmt::format("no slot is free: unload a model, finish a session or raise --max-adapters {}",
                     limits_.max_models));
  }
  int64_t of_tenant = 0;
  for (const auto& [model, entry] : models_) of_tenant += entry.tenant == command.tenant ? 1 : 0;
  if (limits_.max_models_per_tenant > 0 && of_tenant >= limits_.max_models_per_tenant) {
    full(fmt::format("this tenant has its {} models (--max-adapters-per-tenant)", of_tenant));
  }
  if (limits_.max_bytes > 0 && num_bytes_ + bytes > limits_.max_bytes) {
    full(
        fmt::format("a model of rank {} takes {} MiB and {} are left: unload a model, use a "
                    "smaller rank or raise --memory",
                    rank, bytes >> 20, (limits_.max_bytes - num_bytes_) >> 20));
  }
}

void AdapterBook::add(const api::Command& command, int64_t bytes) {
  models_[command.model] = {.tenant = command.tenant, .session = command.session, .bytes = bytes};
  num_bytes_ += bytes;
}

void AdapterBook::remove(const api::ModelId& model) {
  const auto found = models_.find(model);
  if (found == models_.end()) return;
  num_bytes_ -= found->second.bytes;
  models_.erase(found);
}

}  // namespace strata::engine
