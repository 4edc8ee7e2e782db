// SPDX-License-Identifier: Apache-2.0
#include "schedule/fault.h"

#include <fmt/format.h>

namespace strata::schedule {

std::string_view rule_text(Rule rule) {
  switch (rule) {
    case Rule::kRange:
      return "stages and micro-batches are those of the plan";
    case Rule::kOneRank:
      return "a stage lives on one rank";
    case Rule::kOnce:
      return "every action stands once";
    case Rule::kOnePlace:
      return "a micro-batch is in one place at a time";
    case Rule::kForwardFirst:
      return "a forward comes before its backward";
    case Rule::kInputGradFirst:
      return "an input gradient comes before its weight gradient";
    case Rule::kInOrder:
      return "micro-batches of a stage are in order";
    case Rule::kPredecessorFirst:
      return "no stage comes before the one that it takes from";
    case Rule::kSentIsComputed:
      return "what is sent has been computed";
    case Rule::kReceivedFirst:
      return "what another rank makes is received before it is used";
    case Rule::kReceivedIsSent:
      return "what is received is sent, and what is sent is received";
    case Rule::kChannelOrder:
      return "receives are in the order of their sends";
    case Rule::kComplete:
      return "every stage computes every micro-batch";
    case Rule::kDeadlock:
      return "no rank waits for what waits for it";
  }
  return "";
}

std::string to_string(const Fault& fault) {
  return fmt::format("rank {}, slot {}, {}: breaks '{}': {}", fault.rank, fault.slot, fault.action,
                     rule_text(fault.rule), fault.detail);
}

}  // namespace strata::schedule
