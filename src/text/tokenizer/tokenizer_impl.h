// SPDX-License-Identifier: Apache-2.0
// What a Tokenizer holds; shared by tokenizer.cc and detokenizer.cc.
#pragma once
#include <algorithm>
#include <functional>

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/aligned_text.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/spec.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::text {

struct Tokenizer::Impl {
  Impl(TokenizerSpec parsed, const std::string& where);

  // One text on its way to tokens.
  struct Run {
    bool tracked = false;
    size_t most = SIZE_MAX;                             // tokens
    const std::function<void(size_t)>* hold = nullptr;  // EncodeBound's
    BpeScratch scratch = {};
    Encoding out = {};
    size_t base = 0;   // bytes that are taken all the while
    size_t texts = 0;  // and by copies of a part of the text
    size_t piece = 0;  // bytes of the longest piece

    // Before more is taken than was said.
    void report_memory(size_t of_texts, size_t of_piece) {
      if (hold == nullptr || !*hold || (of_texts <= texts && of_piece <= piece)) return;
      texts = std::max(texts, of_texts);
      piece = std::max(piece, of_piece);
      (*hold)(base + texts + piece * Bpe::kScratch);
    }
    // Those in `scratch`, of what begins at `begin` in `text`.
    void append_symbols(const AlignedText& text, size_t begin) {
      for (const BpeSymbol& symbol : scratch.symbols) {
        out.ids.push_back(symbol.id);
        if (!tracked) continue;
        const size_t at = begin + symbol.begin;
        out.spans.push_back({text.map[at], text.map[at + symbol.size]});
      }
    }
    // False: there are more tokens than wanted.
    bool append_token(int32_t id, Span span) {
      out.ids.push_back(id);
      if (tracked) out.spans.push_back(span);
      return out.ids.size() <= most;
    }
  };
  // Encodes bytes that are no UTF-8; the spans are theirs.
  void encode_invalid_utf8(std::string_view text, Run& run) const;
  // False: there are more tokens than run.most.
  bool encode_valid_utf8(std::string_view text, Run& run) const;
  // Encodes bytes that may be no UTF-8, with what the post-processor adds. False: as above.
  bool encode_text(std::string_view text, bool add_special, Run& run) const;
  // The token of `id`, or null; null too when it is to be skipped.
  [[nodiscard]] const std::string* find_token(int32_t id, bool skip_special) const;

  TokenizerSpec spec;
  Bpe bpe;
  AddedTokenFinder raw_tokens;         // looked for in the text as it came
  AddedTokenFinder normalized_tokens;  // looked for in what the normalizer made of it
  StringTable added_ids;
  std::vector<std::optional<std::string>> tokens;  // by id, added ones included
  std::vector<bool> special;
  // The ids of some text: a text's first token loses a space in some vocabularies.
  std::vector<int32_t> before;
  std::vector<bool> skipped;   // by skip_special
  size_t longest = 0;          // bytes of a token; 0: text may go without tokens
  uint64_t weights[256] = {};  // as Bpe's, with added tokens

 private:
  void add_added_tokens();
  void mark_special_tokens();
  void compute_byte_weights();
  // Valid UTF-8: the text itself, or `sanitized`, which is made of it.
  static std::string_view as_valid_utf8(std::string_view text, std::string& sanitized, Run& run);
  [[nodiscard]] AlignedText normalize_part(std::string_view text, size_t origin, Run& run) const;
  bool encode_normalized(const AlignedText& text, bool at_start, Run& run) const;
  bool encode_piece(const AlignedText& text, Piece piece, Run& run) const;
};

}  // namespace strata::text
