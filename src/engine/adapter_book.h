// SPDX-License-Identifier: Apache-2.0
// AdapterBook: the models alive in all engines of a process, and the limits on them. A slot costs
// nothing until it is taken. Slots and bytes are shared by tenants (base/shared_limit.h): one that
// takes all it can get leaves the others some. Engine thread only, but for limits().
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "api/command.h"
#include "base/shared_limit.h"

namespace strata::engine {

struct AdapterLimits {
  int64_t max_models = 64;
  int64_t max_models_per_tenant = 0;  // 0: its share
  int64_t max_rank = 128;
  int64_t max_bytes = 0;  // of all models together; 0: no limit
};

class AdapterBook {
 public:
  // What a model takes; given back with it.
  struct Place {
    api::TenantId tenant;
    api::SessionId session;
    SharedLimit::Share slot, bytes;
  };

  explicit AdapterBook(const AdapterLimits& limits);

  // Error{kInvalidArgument} for a rank that is too large.
  void check_rank(int64_t rank) const;
  // A place for this tenant's model; Error{kResourceExhausted} that says what is in use, by how
  // many sessions, and which option to raise.
  [[nodiscard]] Place reserve_place(const api::Command& command, int64_t bytes);
  void add(const api::ModelId& model, Place place) { models_[model] = std::move(place); }
  void remove(const api::ModelId& model) { models_.erase(model); }

  [[nodiscard]] int64_t num_models() const { return static_cast<int64_t>(models_.size()); }
  [[nodiscard]] int64_t num_bytes() const { return bytes_.used(); }
  // What tenants share, for who knows how many may come (SharedLimit::set_num_tenants).
  [[nodiscard]] std::vector<SharedLimit> limits() const { return {slots_, bytes_}; }

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  void check_num_models(const api::TenantId& tenant) const;
  // One more model of this tenant's; one that takes so many.
  [[noreturn]] void refuse_for_slots(const api::TenantId& tenant) const;
  [[noreturn]] void refuse_for_bytes(int64_t bytes) const;
  [[nodiscard]] int64_t count_of(const api::TenantId& tenant) const;

  AdapterLimits limits_;
  SharedLimit slots_, bytes_;
  std::map<api::ModelId, Place> models_;
};

}  // namespace strata::engine
