// SPDX-License-Identifier: Apache-2.0
// What is recorded of a sample for stable_reinforce, as bytes: the prompt once a request, and of
// each sequence its tokens and logprobs.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/tinker/protocol/forward_backward.h"

namespace strata::server {

std::string pack_tokens(const std::vector<int32_t>& tokens);
std::string pack_sequence(const std::vector<int32_t>& tokens, const std::vector<float>& logprobs);
// Nothing when the bytes are not of this form.
std::optional<SampleRecord> unpack_sequence(std::string_view prompt, std::string_view sequence);
// "<P> <S> ", numbers of tokens of the prompt and of the sequence, and then prompt, tokens and
// logprobs in hexadecimal: a record as a store without prompts of their own has it.
std::optional<SampleRecord> unpack_record(std::string_view text);

}  // namespace strata::server
