// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/service/refusals.h"

#include <fmt/format.h>

namespace strata::server {

Response over_budget_response(const Charge& charge, int64_t bytes) {
  const int64_t most = charge.limit(Use::kResult).most();
  if (bytes <= most) return refuse(kNoSpaceForResult);
  return error_response(400, fmt::format("the result may take {} bytes, and a tenant's results may "
                                         "take {} (--max-result-bytes); ask for less at once",
                                         bytes, most));
}

Response queue_full_response(bool makes_model) {
  return makes_model ? error_response(kQueueIsFull.other_status, kQueueIsFull.text)
                     : refuse(kQueueIsFull);
}

std::optional<Response> reserve_disk_quota(Usage& usage, StateStore& store,
                                           const std::string& tenant, int64_t bytes,
                                           std::shared_ptr<void>& quota) {
  if (!usage.has_quota(tenant, UsageKind::kDiskBytes)) return std::nullopt;
  auto full = usage.refuse_over_disk_quota(tenant, store.stored_bytes(tenant), bytes);
  if (!full) quota = usage.reserve(tenant, UsageKind::kDiskBytes, bytes);
  return full;
}

std::string too_large_text() {
  return "the request takes more than a quarter of what may be queued (--max-queued-bytes); send "
         "fewer data at once";
}

}  // namespace strata::server
