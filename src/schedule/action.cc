// SPDX-License-Identifier: Apache-2.0
#include "schedule/action.h"

#include <fmt/format.h>

#include "base/check.h"

namespace strata::schedule {

std::string_view op_name(Op op) {
  switch (op) {
    case Op::kForward:
      return "F";
    case Op::kInputGrad:
      return "I";
    case Op::kWeightGrad:
      return "W";
    case Op::kBackward:
      return "B";
    case Op::kSendForward:
      return "SEND_F";
    case Op::kRecvForward:
      return "RECV_F";
    case Op::kSendBackward:
      return "SEND_B";
    case Op::kRecvBackward:
      return "RECV_B";
  }
  return "";
}

std::string to_string(const Action& action) {
  return fmt::format("{}{}{}", action.stage, op_name(action.op), action.microbatch);
}

Action counterpart(const Action& transfer) {
  CHECK(is_transfer(transfer.op), transfer.stage);
  const bool to_next = transfer.op == Op::kSendForward || transfer.op == Op::kRecvBackward;
  const Op op = transfer.op == Op::kSendForward    ? Op::kRecvForward
                : transfer.op == Op::kRecvForward  ? Op::kSendForward
                : transfer.op == Op::kSendBackward ? Op::kRecvBackward
                                                   : Op::kSendBackward;
  return {op, transfer.stage + (to_next ? 1 : -1), transfer.microbatch};
}

std::string to_string(const Slot& slot) {
  if (slot.count == 0) return "";
  if (slot.count == 1) return to_string(slot.parts[0]);
  return fmt::format("({};{})OVERLAP_F_B", to_string(slot.parts[0]), to_string(slot.parts[1]));
}

bool has_transfers(const Table& table) {
  for (const std::vector<Slot>& row : table.rows) {
    for (const Slot& slot : row) {
      for (const Action& action : slot.actions()) {
        if (is_transfer(action.op)) return true;
      }
    }
  }
  return false;
}

std::vector<int> ranks_of_stages(const Table& table) {
  std::vector<int> ranks(static_cast<size_t>(table.num_stages), -1);
  for (int rank = 0; rank < table.num_ranks(); ++rank) {
    for (const Slot& slot : table.rows[static_cast<size_t>(rank)]) {
      for (const Action& action : slot.actions()) {
        if (action.stage < 0 || action.stage >= table.num_stages) continue;
        int& of_stage = ranks[static_cast<size_t>(action.stage)];
        if (of_stage < 0) of_stage = rank;
      }
    }
  }
  return ranks;
}

}  // namespace strata::schedule
