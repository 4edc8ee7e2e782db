// SPDX-License-Identifier: Apache-2.0
#include "server/openai/body_fields.h"

#include <cstdint>
#include <vector>

#include "server/openai/sampling_fields.h"

namespace strata::server {
namespace {

enum class In : uint8_t { kBoth, kChat, kCompletion };
enum class Ignored : uint8_t { kNo, kText, kTextMap };  // kNo: whoever reads it checks it

struct FieldRow {
  std::string_view name;
  In in = In::kBoth;
  Ignored ignored = Ignored::kNo;
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
    {"structured_outputs"},
    {"modalities", In::kChat},
    {"store", In::kChat},
    {"service_tier", In::kChat},
    {"reasoning_effort", In::kChat},
    {"chat_template_kwargs", In::kChat},
    {"user", In::kBoth, Ignored::kText},
    {"metadata", In::kChat, Ignored::kTextMap},
    {"safety_identifier", In::kChat, Ignored::kText},
    {"prompt_cache_key", In::kChat, Ignored::kText},
};

void check_ignored_field_type(const text::Fields& body, const FieldRow& row) {
  if (row.ignored == Ignored::kNo || !body.has(row.name)) return;
  if (row.ignored == Ignored::kText) {
    static_cast<void>(body.string(row.name));
    return;
  }
  const text::Fields map = body.object(row.name);
  map.each_name([&](const std::string& name) { static_cast<void>(map.string(name)); });
}

}  // namespace

void check_fields(const text::Fields& body, bool is_chat) {
  const In other = is_chat ? In::kCompletion : In::kChat;
  std::vector<std::string_view> known;
  for (const FieldRow& row : kFields) {
    if (row.in != other) known.push_back(row.name);
  }
  refuse_unknown_fields(body, known);
  for (const FieldRow& row : kFields) {
    if (row.in != other) check_ignored_field_type(body, row);
  }
}

}  // namespace strata::server
