// SPDX-License-Identifier: Apache-2.0
// What breaks a schedule: the rule, and where. Rules (1) to (5) are those of PyTorch's own tests.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace strata::schedule {

enum class Rule : uint8_t {
  kRange,             // stages and micro-batches are those of the plan
  kOneRank,           // a stage lives on one rank
  kOnce,              // an action stands once, and a backward as B or as I and W
  kOnePlace,          // (5) two that overlap: a forward and a backward of two micro-batches
  kForwardFirst,      // (1) a stage's forward of a micro-batch before its backward
  kInputGradFirst,    // a stage's input gradient before its weight gradient
  kInOrder,           // (3) forwards ascend, backwards ascend or descend
  kPredecessorFirst,  // (4) no stage before the one that it takes from
  kSentIsComputed,    // what is sent has been computed
  kReceivedFirst,     // what comes from another rank is received before it is used
  kReceivedIsSent,    // (2) what is received is sent, and the other way round
  kChannelOrder,      // receives of two ranks are in the order of their sends
  kComplete,          // every stage computes every micro-batch, forward and backward
  kDeadlock,          // no rank waits for what waits for it
};

std::string_view rule_text(Rule rule);

struct Fault {
  int rank = 0;
  int slot = 0;        // the row's length where an action is missing
  std::string action;  // "1B0"
  Rule rule = Rule::kRange;
  std::string detail;
};

// "rank 1, slot 5, 1B0: a forward comes before its backward: ..."
std::string to_string(const Fault& fault);

}  // namespace strata::schedule
