// SPDX-License-Identifier: Apache-2.0
// SamplerTable: the sampling sessions that are in use. Each is of a session that is alive, whose id
// its own begins with, and has one row until it is replaced by one of the same id, crowded out, or
// its session ends. A session's ephemeral ones, which live in memory or a folder of tmp alone, are
// as many as it may have, at most. I/O thread only.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/ids.h"

namespace strata::server {

struct LiveSampler {
  std::string tenant;
  std::string session;
  std::string base_name;
  std::optional<std::string> model_path;
  api::BaseId base = {};
  api::SnapshotId snapshot;  // empty: the base model
  std::string dir;
  bool is_ephemeral = false;
  std::shared_ptr<void> lease;  // keeps the checkpoint's files
};

class SamplerTable {
 public:
  explicit SamplerTable(int64_t max_ephemerals) : max_ephemerals_(max_ephemerals) {}

  static std::string id_of(const std::string& session, int64_t number);

  struct Added {
    bool is_new = true;  // else another of this id is replaced
    std::optional<std::string> one_too_many =
        {};  // the session's oldest ephemeral one, to be taken
  };
  Added add(const std::string& id, LiveSampler sampler);
  // Removes it.
  LiveSampler take(const std::string& id);

  [[nodiscard]] bool contains(const std::string& id) const { return rows_.contains(id); }
  // Null when the tenant has none of that name. Valid until it is replaced or taken.
  [[nodiscard]] const LiveSampler* find(const std::string& id, const std::string& tenant) const;
  [[nodiscard]] int64_t count_of(const std::string& session) const;
  [[nodiscard]] std::vector<std::string> of_session(const std::string& session) const;

 private:
  struct OfSession {
    int64_t count = 0;
    std::deque<std::string> ephemerals;  // oldest first
  };
  const int64_t max_ephemerals_;
  std::map<std::string, LiveSampler> rows_;
  std::map<std::string, OfSession> sessions_;  // that have any
};

}  // namespace strata::server
