// SPDX-License-Identifier: Apache-2.0
// Gemma 4's calls of tools: `call:NAME{key:value,...}` between <|tool_call> and <tool_call|>, where
// keys are bare, texts stand between two <|"|>, and the rest is as in JSON. Read as calls, and
// written as a format of a structural tag of XGrammar's.
#pragma once
#include <boost/json/object.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/openai/arguments_format.h"
#include "server/openai/tool_call.h"

namespace strata::server {

inline constexpr std::string_view kGemmaQuote = "<|\"|>";

// What CallForm::read and CallForm::head are for this form.
ToolCalls read_gemma(std::string_view inner, const ToolTypes& types);
CallHead read_gemma_head(std::string_view inner);

// What of a strict tool's schema no form of values keeps is an OpenAiFault; of another's it is
// passed over and added to the warnings.
boost::json::object gemma_arguments_format(const GrammarTool& tool,
                                           std::vector<std::string>& warnings);

}  // namespace strata::server
