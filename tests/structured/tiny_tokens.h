// SPDX-License-Identifier: Apache-2.0
// The bundled model's tokens, what masks allow of them, and what a schema is refused for.
#pragma once
#include <string>
#include <vector>

#include "base/error.h"
#include "structured/grammar.h"

namespace strata::structured {

struct Tokens {
  explicit Tokens(const std::string& path, const std::string& end)
      : tokenizer(text::Tokenizer::load(path)),
        end_token(tokenizer.token_to_id(end).value()),
        size(tokenizer.vocab_size() + 3),  // rows of logits without a token
        vocabulary(tokenizer, size) {}

  [[nodiscard]] Matcher start(const std::string& schema) const {
    return compile_grammar(vocabulary, {.text = schema}, "S").start({end_token});
  }
  [[nodiscard]] std::string fault_of(const std::string& schema) const {
    try {
      compile_grammar(vocabulary, {.text = schema}, "S");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  text::Tokenizer tokenizer;
  int32_t end_token;
  int64_t size;
  Vocabulary vocabulary;
};

inline const Tokens& tiny() {
  static const Tokens tokens(std::string(STRATA_SOURCE_DIR) + "/models/tiny-qwen3", "<|im_end|>");
  return tokens;
}

inline bool has_bit(const std::vector<uint32_t>& bits, int64_t token) {
  return (bits[static_cast<size_t>(token / 32)] >> (token % 32) & 1) != 0;
}

inline std::vector<uint32_t> mask_of(const Matcher& matcher) {
  std::vector<uint32_t> bits(num_mask_words(matcher.vocab_size()), 0xffffffffu);
  matcher.fill_mask(bits);
  return bits;
}

inline std::vector<int32_t> allowed_tokens(const Matcher& matcher) {
  const std::vector<uint32_t> bits = mask_of(matcher);
  std::vector<int32_t> out;
  for (int64_t token = 0; token < std::ssize(bits) * 32; ++token)
    if (has_bit(bits, token)) out.push_back(static_cast<int32_t>(token));
  return out;
}

}  // namespace strata::structured
