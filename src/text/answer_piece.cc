// SPDX-License-Identifier: Apache-2.0
#include "text/answer_piece.h"

#include <utility>

namespace strata::text {

void append_call_pieces(std::vector<ToolCall>& calls, std::vector<ToolCall> more) {
  for (ToolCall& call : more) {
    if (call.name.empty() && call.arguments.empty()) continue;
    if (call.name.empty() && !calls.empty()) {
      calls.back().arguments += call.arguments;
    } else {
      calls.push_back(std::move(call));
    }
  }
}

}  // namespace strata::text
