// SPDX-License-Identifier: Apache-2.0
// What a model's context and the memory for a pass allow, each in one arithmetic and one sentence:
// asked by the server before it takes a command, and by an engine before it runs one. Nothing, or
// why not.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace strata::api {

// What messages say behind a context that is too short: how there would be a longer one, if the
// model has it.
inline std::string context_note(int64_t context, int64_t of_model) {
  if (context >= of_model) return {};
  return "; the model has " + std::to_string(of_model) +
         ", and this run is planned for fewer: --context (of train and eval --max-length) plans "
         "for more";
}

// What is wrong with a datum of so many tokens; nothing: it fits the context.
inline std::optional<std::string> find_context_fault(int64_t tokens, int64_t context) {
  if (tokens <= context) return std::nullopt;
  return std::to_string(tokens) + " tokens exceed the model's context window of " +
         std::to_string(context);
}

// What is wrong with a sample; no number is negative.
inline std::optional<std::string> find_context_fault(int64_t prompt, int64_t max_tokens,
                                                     int64_t context) {
  if (max_tokens <= context - prompt) return std::nullopt;
  return "Prompt length plus max_tokens exceeds the model's context window: " +
         std::to_string(prompt) + " + " + std::to_string(max_tokens) + " > " +
         std::to_string(context);
}

// What is wrong with a datum that trains, where a pass has memory for `longest` tokens of one.
inline std::optional<std::string> find_datum_memory_fault(int64_t tokens, int64_t longest) {
  if (tokens <= longest) return std::nullopt;
  return "has " + std::to_string(tokens) + " tokens, and the memory for a pass holds " +
         std::to_string(longest) +
         " of one datum that is trained (max_trained_length of get_server_capabilities); split it, "
         "or start the server with more --memory";
}

// What is wrong with the pass of one sequence, whose bytes an engine has counted.
inline std::optional<std::string> find_pass_memory_fault(int64_t tokens, int64_t bytes,
                                                         bool recomputes, int64_t most_bytes) {
  if (bytes <= most_bytes) return std::nullopt;
  return "a pass of " + std::to_string(tokens) + " tokens takes " + std::to_string(bytes) +
         " bytes" + (recomputes ? " with full recompute" : "") + ", and a pass may take " +
         std::to_string(most_bytes) + "; split the sequence, or give more memory (--memory)";
}

}  // namespace strata::api
