// SPDX-License-Identifier: Apache-2.0
// What a Tokenizer holds; shared by tokenizer.cc and detokenizer.cc.
#pragma once
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/spec.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::text {

struct Tokenizer::Impl {
  Impl(TokenizerSpec parsed, const std::string& where);

  void encode(std::string_view text, BpeScratch& scratch, Encoding& out, bool tracked) const;
  // The token of `id`, or null; null too when it is to be skipped.
  [[nodiscard]] const std::string* token(int32_t id, bool skip_special) const;

  TokenizerSpec spec;
  Bpe bpe;
  AddedTokenFinder raw_tokens;         // looked for in the text as it came
  AddedTokenFinder normalized_tokens;  // looked for in what the normalizer made of it
  StringTable added_ids;
  std::vector<std::optional<std::string>> tokens;  // by id, added ones included
  std::vector<bool> special;
  std::vector<bool> skipped;  // by skip_special
  size_t longest = 0;         // bytes of a token; 0: text may go without tokens

 private:
  void encode_segment(AlignedText text, bool at_start, BpeScratch& scratch, Encoding& out) const;
};

}  // namespace strata::text
