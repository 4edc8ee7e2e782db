// SPDX-License-Identifier: Apache-2.0
// SessionTable: the sessions that are alive. Each has one row, from its making, or the start of the
// process, to its end; models and samplers are of sessions that have one. What must survive a
// restart is the state store's. I/O thread only.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace strata::server {

class SessionTable {
 public:
  void add(const std::string& id, const std::string& tenant, double now);
  void remove(const std::string& id);

  [[nodiscard]] size_t size() const { return rows_.size(); }
  [[nodiscard]] bool contains(const std::string& id) const { return rows_.contains(id); }
  // Another tenant's is none.
  [[nodiscard]] bool contains(const std::string& id, const std::string& tenant) const;
  [[nodiscard]] int64_t count_of(const std::string& tenant) const;

  // A sign of life; false when the tenant has no such session alive.
  bool touch(const std::string& id, const std::string& tenant, double now);
  // Those without one for so many seconds, `most` of them.
  [[nodiscard]] std::vector<std::string> find_silent(double now, double seconds, size_t most) const;
  // So many seconds were no silence of anybody's.
  void excuse(double now, double seconds);

 private:
  struct Row {
    std::string tenant;
    double last_seen = 0;  // now_seconds()
  };
  std::map<std::string, Row> rows_;
  std::map<std::string, int64_t> counts_;  // by tenant; none is 0
};

}  // namespace strata::server
