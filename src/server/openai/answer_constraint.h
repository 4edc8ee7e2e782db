// SPDX-License-Identifier: Apache-2.0
// What an answer has to fit, as the body of a request says it: response_format as OpenAI has it,
// structured_outputs as vLLM has it, tool_choice and strict tools. Faults are Errors that name the
// field.
#pragma once
#include <optional>
#include <string>

#include "server/openai/answer_order.h"
#include "server/openai/served_text.h"
#include "text/json_body.h"

namespace strata::server {

struct ToolChoice {
  enum class Kind : uint8_t { kAuto, kNone, kRequired, kNamed };
  Kind kind = Kind::kAuto;
  std::string name = {};  // of the tool that has to be called
};
ToolChoice read_tool_choice(const text::Fields& body);

// What any request's answers have to fit; nothing where they are free.
std::optional<AnswerConstraint> read_format_constraint(const text::Fields& body);

// The same of a chat whose form, types and in_reasoning are set, and what tools ask for. Sets the
// order's constraint, its warnings and how many calls are read.
void read_chat_constraint(const text::Fields& body, const ServedText& text, AnswerOrder& order);

}  // namespace strata::server
