// SPDX-License-Identifier: Apache-2.0
// The forms that people have data in, each read as one of our own three (data/example.h), so that
// equal examples give equal tokens and masks in all of them:
//   Alpaca       {"instruction", "input", "output"} and "system", "history"; Dolly's "context" and
//                "response" likewise. Turns, with the input behind the instruction on a line of its
//                own; of a model without a chat template the published Alpaca prompt.
//   ShareGPT     {"conversations": [{"from": "human", "value": "..."}, ...]} and "system", "tools"
//   TRL's lists  {"prompt": [messages], "completion": [messages]}
//   pairs        {"prompt", "chosen", "rejected"}, texts or lists of messages
#pragma once
#include <cstdint>
#include <string_view>

namespace strata::data {

enum class Form : uint8_t {
  kText,
  kPromptCompletion,
  kMessages,
  kAlpaca,
  kShareGpt,
  kTurnLists,
  kPreference,
};
constexpr size_t kNumForms = 7;

// "Alpaca: instruction, input, output"; empty of our own forms.
std::string_view form_description(Form form);

}  // namespace strata::data
