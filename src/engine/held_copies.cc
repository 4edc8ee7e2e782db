// SPDX-License-Identifier: Apache-2.0
#include "engine/held_copies.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace strata::engine {
namespace {

int64_t write_files(const AdapterCopy& copy, const api::Saved& as, const std::string& base,
                    const std::map<std::string, std::string>& metadata) {
  return as.what == api::SavedAs::kExport
             ? export_adapter_files(*copy.weights, as.where, base, metadata)
             : write_adapter_state(copy, as.where, base, metadata);
}

}  // namespace

api::Saved HeldCopies::add_pending_write(const api::RequestId& request, AdapterCopy copy,
                                         api::Saved as, const std::string& base_model_name) {
  const int64_t bytes = copy_bytes(copy);
  auto held = std::make_shared<const Held>(Held{std::move(copy), as, base_model_name, bytes});
  const MutexLock lock(mutex_);
  CHECK(held_.emplace(request, std::move(held)).second, request.text);
  num_bytes_ += bytes;
  largest_ = std::max(largest_, bytes);
  return as;
}

std::shared_ptr<const HeldCopies::Held> HeldCopies::find(const api::RequestId& request) const {
  const MutexLock lock(mutex_);
  const auto found = held_.find(request);
  return found == held_.end() ? nullptr : found->second;
}

std::optional<int64_t> HeldCopies::flush_copy(const api::RequestId& request) {
  const std::shared_ptr<const Held> held = find(request);
  if (held == nullptr) return std::nullopt;
  const std::shared_ptr<void> goes(nullptr, [&](void*) { drop(request); });
  return write_files(held->copy, held->as, held->base_model_name, metadata_);
}

void HeldCopies::drop(const api::RequestId& request) {
  std::shared_ptr<const Held> held;  // ends outside the lock
  const MutexLock lock(mutex_);
  const auto found = held_.find(request);
  if (found == held_.end()) return;
  held = std::move(found->second);
  num_bytes_ -= held->num_bytes;
  held_.erase(found);
}

int64_t HeldCopies::num_bytes() const {
  const MutexLock lock(mutex_);
  return num_bytes_;
}

int64_t HeldCopies::largest() const {
  const MutexLock lock(mutex_);
  return largest_;
}

}  // namespace strata::engine
