// SPDX-License-Identifier: Apache-2.0
// What a model's answer consists of, besides plain text.
#pragma once
#include <string>
#include <vector>

namespace strata::text {

// A call of a tool.
struct ToolCall {
  std::string name;
  std::string arguments;  // the text of a JSON object
  bool operator==(const ToolCall&) const = default;
};

// A part of an answer, as it comes.
struct AnswerPiece {
  std::string reasoning = {}, content = {};
  std::vector<ToolCall> calls = {};  // without a name: more of the last one's arguments
  [[nodiscard]] bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

// Appends pieces of calls: arguments without a name to the last call's.
void append_call_pieces(std::vector<ToolCall>& calls, std::vector<ToolCall> more);

}  // namespace strata::text
