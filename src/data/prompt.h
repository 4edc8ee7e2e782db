// SPDX-License-Identifier: Apache-2.0
// A record as a prompt, which a model is to answer:
//   {"prompt": "..."}          a text to go on with, with the begin token of the tokenizer
//   {"prompt": [messages]}     turns, as the template writes them before an answer; with "tools"
//   {"messages": [messages]}   likewise; an answer at the end is left out
// Other fields are the record's own.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "data/example.h"

namespace strata::data {

struct ReadPrompt {
  std::vector<int32_t> tokens = {};  // one at least
  bool has_read_clock = false;       // the template wrote a date that nobody gave
};

// Throws Error that names field, got and wanted; the caller adds file and line.
ReadPrompt read_prompt(std::string_view record, const ExampleContext& context);

// An example of which nothing is trained and whose tokens are the prompt: its last target is none
// of the prompt's.
Example example_of_prompt(std::vector<int32_t> tokens);

}  // namespace strata::data
