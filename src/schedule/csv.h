// SPDX-License-Identifier: Apache-2.0
// Tables as CSV in PyTorch's form: a line a rank, a cell a place, "{stage}{op}{microbatch}" or
// "(0F7;7B3)OVERLAP_F_B"; an empty cell is idle. Read as well: the older form, which writes B, W
// and BW for I, W and B. A table is in it when it has a BW, or a W without any I.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "schedule/action.h"

namespace strata::schedule {

struct CsvTable {
  Table table;  // as many stages and micro-batches as its highest numbers say
  // PyTorch's actions on sharded weights and on waiting, which mean nothing here, by name: UNSHARD,
  // RESHARD, REDUCE_GRAD, WAIT_REDUCE_GRAD, WAIT_SEND_F, WAIT_SEND_B. Their places are idle.
  std::map<std::string, int64_t> left_out;
};

// `name` is the file's, for messages. Throws Error with rank and slot for what is no table; whether
// it is a schedule is asked of schedule/verify.h.
CsvTable read_csv(std::string_view text, const std::string& name);

std::string csv_text(const Table& table);

}  // namespace strata::schedule
