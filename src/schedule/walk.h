// SPDX-License-Identifier: Apache-2.0
// What a schedule takes, at costs by action: time, bubbles, and how many forwards wait for their
// backward at once. Each rank runs its queue, an action as soon as what it needs is there;
// transfers cost as stated and occupy nobody.
#pragma once
#include <cstddef>
#include <vector>

#include "schedule/action.h"

namespace strata::schedule {

// In units of one stage's forward. B costs input_grad and weight_grad; so does a pair, added up.
struct Costs {
  double forward = 1;
  double input_grad = 1;
  double weight_grad = 1;
  double send_forward = 0;
  double send_backward = 0;
};

// A forwarding delay of 2 gives each transfer the time of one action of its direction.
Costs ideal_costs(int forwarding_delay = 1);

struct TimedSlot {
  size_t slot = 0;
  double start = 0, end = 0;
};

struct RankUse {
  double busy = 0;
  int peak_live = 0;                  // forwards whose activations are kept: until B, or until W
  std::vector<TimedSlot> slots = {};  // that take time, in order
};

struct Walk {
  double time = 0;          // until the last rank is done
  double bubble_share = 0;  // of all ranks' time
  std::vector<RankUse> ranks = {};
};

// `table` has been verified.
Walk walk(const Table& table, const Costs& costs);

}  // namespace strata::schedule
