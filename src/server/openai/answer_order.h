// SPDX-License-Identifier: Apache-2.0
// AnswerOrder: what a chat or a completion asks for, read and checked: the samples that answer it,
// and how their tokens become the answer. Choices are num_samples of each sample, in turn.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "api/command.h"
#include "server/openai/answer_parser.h"
#include "structured/grammar.h"

namespace strata::server {

struct OutputOptions {
  bool stream = false;
  bool stream_usage = false;  // in a chunk of its own, the last
  bool logprobs = false;
  int64_t top_logprobs = 0;  // besides the token's own
};

// What an answer fits, and the field of the body that asks for it.
struct AnswerConstraint {
  structured::GrammarSource source;
  std::string param;
};

struct AnswerOrder {
  bool is_chat = false;
  // Without a snapshot; a chat has one. Once they were submitted, with their prompts where these
  // are told again.
  std::vector<api::Sample> samples = {};
  int64_t prompt_tokens = 0;  // of all of them
  size_t kept = 0;  // bytes that it keeps until it is answered: its types, prompts to tell
  OutputOptions telling = {};
  std::optional<AnswerConstraint> constraint = {};
  std::vector<std::string> warnings = {};  // what of it is not kept, as clients are told
  // What a chat has.
  AnswerForm form = {};
  bool in_reasoning = false;
  std::shared_ptr<const ToolTypes> types = nullptr;  // null: no tools may be called
  int64_t most_calls = INT64_MAX;
  // What a completion has.
  bool echo = false;
  bool drops_answer = false;  // max_tokens is 0: the prompt alone is told

  [[nodiscard]] int64_t choices_each() const { return samples.front().num_samples; }
  [[nodiscard]] int64_t num_choices() const {
    return static_cast<int64_t>(samples.size()) * choices_each();
  }
};

}  // namespace strata::server
