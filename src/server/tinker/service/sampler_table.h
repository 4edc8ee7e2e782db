// SPDX-License-Identifier: Apache-2.0
// SamplerTable: the sampling sessions that are in use. Always true between two calls:
//   - a row is of a session that is alive, whose id its own begins with, or waits to be taken after
//     its session's end, and is not found then;
//   - what rows take is their tenant's; of those that the store has, which come back when they are
//     used, the ones not used for longest make way, and one for which there are no bytes has no
//     row: that changes no answer;
//   - an ephemeral one, which lives in memory or a folder of tmp alone, has its row until it is
//     replaced by one of the same id, crowded out, or taken; a session has so many of them at most.
// I/O thread only.
//   if (SharedLimit::Share bytes = table.take_bytes_dropping_idle(id, sampler))
//     table.add(id, std::move(sampler), std::move(bytes));
#pragma once
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "api/ids.h"
#include "base/shared_limit.h"

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
  bool reads_anothers = false;  // a checkpoint of another tenant, whose files it does not keep
  std::shared_ptr<void> lease;  // keeps the checkpoint's files
};

class SamplerTable {
 public:
  using Row = std::shared_ptr<const LiveSampler>;

  SamplerTable(int64_t max_ephemerals, const SharedLimit& bytes)
      : max_ephemerals_(max_ephemerals), bytes_(bytes) {}

  static std::string id_of(const std::string& session, int64_t number);
  // What the ids of a session's begin with.
  static std::string id_of(const std::string& session) { return session + ":sample:"; }

  // What a row takes, from its tenant's; others of the tenant make way. Empty when all that is left
  // are ephemeral.
  [[nodiscard]] SharedLimit::Share take_bytes_dropping_idle(const std::string& id,
                                                            const LiveSampler& sampler);
  // Whether an ephemeral row of this id would replace one, or crowd out its session's oldest: it
  // needs no bytes beforehand.
  [[nodiscard]] bool would_evict(const std::string& id, const std::string& session) const;

  struct Added {
    Row row = {};
    Row replaced = {};  // of this id
    std::optional<std::string> crowded_out = {};
    Row evicted_row = {};  // its session's oldest ephemeral one
  };
  // Without bytes it takes them, if there are any: an ephemeral one must have taken them, or be
  // left some.
  Added add(const std::string& id, LiveSampler sampler, SharedLimit::Share bytes = {});
  // Removes it.
  Row take(const std::string& id);
  // Removes those that read another tenant's checkpoint, whose files are gone, at most so many; how
  // many those were.
  int64_t drop_readers(const std::string& checkpoint, int64_t most);

  [[nodiscard]] bool contains(const std::string& id) const;
  // A use. Null when the tenant has none of that name.
  [[nodiscard]] Row touch_sampler(const std::string& id, const std::string& tenant);
  // Whether a session that is alive has any.
  [[nodiscard]] bool has_any(const std::string& session) const;
  // At most so many, in order.
  [[nodiscard]] std::vector<std::string> of_session(const std::string& session, int64_t most) const;
  // From now on its rows are not found.
  void end_session(const std::string& session) { sessions_.erase(session); }

  // How many the store has of a session, without ephemeral ones, and those in use that are. It is
  // told once what the store has of before, and then of each one more.
  [[nodiscard]] int64_t count_of(const std::string& session) const;
  void set_stored(const std::string& session, int64_t count) { sessions_[session].stored = count; }
  void count_stored(const std::string& session) { ++sessions_[session].stored; }

 private:
  using Idle = std::list<const std::string*>;  // the ids of rows
  struct Kept {
    Row row;
    SharedLimit::Share bytes;
    std::optional<Idle::iterator> idle = {};  // none: it is ephemeral
  };
  using Rows = std::map<std::string, Kept>;
  struct OfSession {
    int64_t stored = 0;
    std::deque<std::string> ephemerals;  // oldest first
  };
  // Removes the row of this id, and, for one more ephemeral one, its session's oldest if it has as
  // many as it may: how many bytes those had.
  int64_t evict_for(const std::string& id, const LiveSampler& sampler, Added& added);
  void insert(const std::string& id, const Row& row, SharedLimit::Share bytes);
  Row erase(Rows::iterator at);

  const int64_t max_ephemerals_;
  SharedLimit bytes_;
  Rows rows_;
  std::set<std::pair<std::string, std::string>> readers_;  // others' checkpoints, and ids
  std::map<std::string, Idle> idle_;           // by tenant; those not used for longest first
  std::map<std::string, OfSession> sessions_;  // alive, that have or had any
};

}  // namespace strata::server
