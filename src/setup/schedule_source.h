// SPDX-License-Identifier: Apache-2.0
// A pipeline's schedule as commands name it: one of schedule/generate.h, or a CSV file in PyTorch's
// form.
#pragma once
#include <string>
#include <string_view>

#include "schedule/action.h"

namespace strata::apps {

struct ScheduleSource {
  std::string schedule;  // the name or the file
  int num_ranks = 1;
  std::string_view ranks_option;           // what its number is asked for by, for messages
  std::string_view option = "--schedule";  // likewise, of the schedule
  int num_microbatches = 1;
  int num_chunks = 0;  // of a rank; 0: one, or as many as the file has
  int forwarding_delay = 1;
};

// Generated or read, and verified: a fault is an Error that names rank, slot, action and rule.
schedule::Table resolve_schedule(const ScheduleSource& source);

// `name` is the schedule's, for the message.
void check_schedule(const std::string& name, const schedule::Table& table);

}  // namespace strata::apps
