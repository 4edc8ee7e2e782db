// SPDX-License-Identifier: Apache-2.0
// Tables of the published schedules, from one pure generator. Only computation stands in them
// (schedule/lower.h adds transfers), no place is idle, and the backwards of a stage ascend, because
// a sum of gradients is one chain over micro-batches in order. Queues equal PyTorch's own, but for
// the backwards of circular (looped breadth-first), which PyTorch runs in descending order.
//   gpipe        all forwards, then all backwards
//   circular     the forwards of chunk c of all micro-batches before those of chunk c + 1
//   1f1b         p - rank forwards, then a backward and a forward in turn
//   interleaved  1f1b over several chunks a rank, in rounds of micro-batches (arXiv 2104.04473)
//   zb1p         interleaved with weight gradients apart, in what would be bubbles (arXiv
//                2401.10241)
#pragma once
#include <string_view>

#include "schedule/action.h"

namespace strata::schedule {

enum class Kind : uint8_t { kGpipe, kCircular, k1f1b, kInterleaved, kZb1p };

struct Spec {
  Kind kind = Kind::kGpipe;
  int num_ranks = 1;
  int num_microbatches = 1;
  int num_chunks = 1;        // of a rank; circular calls them repeats
  int forwarding_delay = 1;  // circular: 2 sends an output while the next one is computed
};

// Throws Error with all numbers where the schedule does not exist: chunks of gpipe and 1f1b,
// micro-batches that do not divide into rounds, a delay without micro-batches to fill it.
Table generate(const Spec& spec);

// False where `name` is none of them.
[[nodiscard]] bool parse_kind(std::string_view name, Kind& kind);
std::string_view kind_name(Kind kind);

}  // namespace strata::schedule
