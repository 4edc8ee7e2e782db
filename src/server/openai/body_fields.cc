// SPDX-License-Identifier: Apache-2.0
#include "server/openai/body_fields.h"

#include <cstdint>
#include <vector>

#include "server/openai/sampling_fields.h"

namespace strata::server {
namespace {

enum class In : uint8_t { kBoth, kChat, kCompletion };

struct FieldRow {
  std::string_view name;
  In in = In::kBoth;
};

constexpr FieldRow kFields[] = {
    {"model"},
    {"messages", In::kChat},
    {"prompt", In::kCompletion},
    {"tools", In::kChat},
    {"tool_choice", In::kChat},
    {"parallel_tool_calls", In::kChat},
    {"echo", In::kCompletion},
    {"best_of", In::kCompletion},
    {"stream"},
    {"stream_options"},
    {"n"},
    {"logprobs"},
    {"top_logprobs", In::kChat},
    {"stop"},
    {"seed"},
    {"max_tokens"},
    {"max_completion_tokens", In::kChat},
    {"temperature"},
    {"top_p"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"logit_bias"},
    {"top_k"},
    {"min_p"},
    {"repetition_penalty"},
    {"response_format"},
    {"modalities", In::kChat},
    {"store", In::kChat},
    {"service_tier", In::kChat},
    {"reasoning_effort", In::kChat},
    {"chat_template_kwargs", In::kChat},
    {"user"},
    {"metadata", In::kChat},
    {"safety_identifier", In::kChat},
    {"prompt_cache_key", In::kChat},
};

}  // namespace

void check_fields(const Fields& body, bool is_chat) {
  const In other = is_chat ? In::kCompletion : In::kChat;
  std::vector<std::string_view> known;
  for (const FieldRow& row : kFields) {
    if (row.in != other) known.push_back(row.name);
  }
  refuse_others(body, known);
}

}  // namespace strata::server
