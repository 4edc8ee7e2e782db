// SPDX-License-Identifier: Apache-2.0
// AdapterBook: the models alive in all engines of a process, and the limits on them. A slot costs
// nothing until it is taken. Engine thread only.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "api/command.h"

namespace strata::engine {

struct AdapterLimits {
  int64_t max_models = 64;
  int64_t max_models_per_tenant = 0;  // 0: as many as there are
  int64_t max_rank = 128;
  int64_t max_bytes = 0;  // of all models together; 0: no limit
};

class AdapterBook {
 public:
  explicit AdapterBook(const AdapterLimits& limits) : limits_(limits) {}

  // Error{kResourceExhausted} that says what is in use, by how many sessions, and which option to
  // raise; Error{kInvalidArgument} for a rank that is too large.
  void check(const api::Command& command, int64_t rank, int64_t bytes) const;
  void add(const api::Command& command, int64_t bytes);
  void remove(const api::ModelId& model);

  [[nodiscard]] int64_t num_models() const { return static_cast<int64_t>(models_.size()); }
  [[nodiscard]] int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Entry {
    api::TenantId tenant;
    api::SessionId session;
    int64_t bytes = 0;
  };
  [[nodiscard]] std::string usage() const;

  AdapterLimits limits_;
  std::map<api::ModelId, Entry> models_;
  int64_t num_bytes_ = 0;
};

}  // namespace strata::engine
