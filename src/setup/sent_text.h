// SPDX-License-Identifier: Apache-2.0
// What ranks send to each other, as people and programs read it.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/comm.h"
#include "engine/pipeline/plan.h"
#include "engine/pipeline/sent_bytes.h"

namespace strata::apps {

// What a plan says where it is of one of several data ranks, which are alike.
std::string data_ranks_text(const engine::PipelinePlan& plan);
std::string expert_ranks_text(const engine::PipelinePlan& plan);
// A row a rank.
std::string sent_table(const std::string& title, std::span<const engine::SentBytes> of_ranks);
// {KIND: BYTES}, of all of them together.
std::string sent_json(std::span<const engine::SentBytes> of_ranks);
// The most that a process took in memory, and what was planned.
struct RankMemory {
  int64_t peak = 0, planned = 0;
};
// [{"rank", "sent_bytes": {KIND: BYTES}, "planned_sent_bytes": {KIND: BYTES}}, ...], the latter
// unless `planned` is empty; with `memory`, of as many ranks, of those that have some also
// "peak_bytes" and "planned_bytes".
std::string sent_by_rank_json(std::span<const engine::SentBytes> of_ranks,
                              std::span<const engine::SentBytes> planned,
                              std::span<const std::optional<RankMemory>> memory = {});
// Every rank's. Collective.
std::vector<engine::SentBytes> gather_sent(Comm& comm, const engine::SentBytes& own);

}  // namespace strata::apps
