// SPDX-License-Identifier: Apache-2.0
// What a model's context allows, in one arithmetic and one sentence: asked by
// the server before it takes a command, and by an engine before it runs one.
// Nothing, or why not.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace strata::api {

// Of a datum.
inline std::optional<std::string> over_context(int64_t tokens, int64_t context) {
  if (tokens <= context) return std::nullopt;
  return std::to_string(tokens) + " tokens exceed the model's context window of " +
         std::to_string(context);
}

// Of a sample; below 2^62 each.
inline std::optional<std::string> over_context(int64_t prompt, int64_t max_tokens,
                                               int64_t context) {
  if (prompt + max_tokens <= context) return std::nullopt;
  return "Prompt length plus max_tokens exceeds the model's context window: " +
         std::to_string(prompt) + " + " + std::to_string(max_tokens) + " > " +
         std::to_string(context);
}

}  // namespace strata::api
