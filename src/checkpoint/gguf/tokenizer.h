// SPDX-License-Identifier: Apache-2.0
// What a GGUF file says of text, as the small files of a Hugging Face directory: tokenizer.json,
// tokenizer_config.json (with the chat template) and generation_config.json. The patterns that cut
// text are Hugging Face's, also where llama.cpp has approximations of them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf/gguf_file.h"

namespace strata {

// The file of that name, or nothing: for other names, and where the keys have no vocabulary. Throws
// Error on a kind of tokenizer that is not supported; the message lists those that are.
std::optional<std::string> make_gguf_text_file(const GgufKeys& keys, std::string_view name);

// The token that tokenizer.ggml.NAME_token_id names, or -1: no key, or llama.cpp's own -1 in 32
// bits.
int64_t gguf_token_id(const GgufKeys& keys, std::string_view name);
// The ids of the tokens that end a text, each once.
std::vector<int64_t> gguf_end_token_ids(const GgufKeys& keys);

}  // namespace strata
