// SPDX-License-Identifier: Apache-2.0
// The fields that chats and completions share: how tokens are chosen, how many, when they end, and
// what is told of them. Faults are Errors that name the field.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "api/command.h"
#include "api/work.h"
#include "server/openai/answer_order.h"
#include "server/openai/served_text.h"
#include "text/json_body.h"

namespace strata::server {

constexpr int64_t kMostTopLogprobs = 20;

// stream, stream_options. What is told of logprobs the two forms say differently.
OutputOptions read_stream_options(const text::Fields& body);

// temperature, top_p, top_k, min_p, penalties, logit_bias, seed, n, stop into `sample`.
void read_sampling(const text::Fields& body, const ServedText& text, const api::BaseInfo& base,
                   uint64_t fallback_seed, api::Sample& sample);

// Told how many bytes reading a body takes in all, before they are taken; what it throws is the
// answer. Empty: nobody counts.
using TakeMemory = std::function<void(size_t bytes)>;

// The tokens of a prompt that came in `param`; throws where the context has no space for them, and
// is told what that takes.
std::vector<int32_t> encode_prompt(const ServedText& text, const api::BaseInfo& base,
                                   std::string_view prompt, std::string_view param,
                                   bool add_special, const TakeMemory& take);
// Sets max_tokens, which a request leaves out (nothing) or says. Throws where the context would
// become too long; `param` is what the prompt came in.
void set_max_tokens(const ServedText& text, const api::BaseInfo& base,
                    std::optional<int64_t> max_tokens, std::string_view param, api::Sample& sample);
// Bytes of a choice besides its text, measured.
inline constexpr int64_t kChoiceBytes = 1024;
// What an answer takes at most: its samples' outputs, and about what is made of them.
int64_t most_answer_bytes(const AnswerOrder& order);
// Throws where the answer's JSON could become too long.
void check_answer_size(const AnswerOrder& order);
// Adds up the tokens of its samples' prompts.
void count_prompt_tokens(AnswerOrder& order);

// Refuses, by name, every field that is not null and not among these.
void refuse_unknown_fields(const text::Fields& body, std::span<const std::string_view> known);
// Fields of OpenAI's that change no answer, and those that would and are refused.
void refuse_unsupported_values(const text::Fields& body);

}  // namespace strata::server
