// SPDX-License-Identifier: Apache-2.0
// Answers that fit a schema: which tokens may come next, so that what is sampled is JSON of it.
// XGrammar (https://github.com/mlc-ai/xgrammar) does the work, and nothing else of the house
// includes it. A build without it has the same functions, which throw Error{kUnsupported}.
//   const Vocabulary vocabulary(tokenizer, logits_width);
//   const Grammar grammar = compile_json_schema(vocabulary, text, "--json-schema FILE");
//   Matcher matcher = grammar.start(end_tokens);
//   matcher.fill_mask(bits);  matcher.accept(token);
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace strata::structured {

// Throws Error{kUnsupported} in a build that has no grammars, and says how to get one that has.
void require_grammars();

// The 32-bit words of a mask over `vocab_size` tokens; bit i % 32 of word i / 32 is token i's.
inline size_t num_mask_words(int64_t vocab_size) {
  return static_cast<size_t>((vocab_size + 31) / 32);
}

class Grammar;

// The tokens of a model as grammars see them. Never part of an answer are special tokens, ids
// without a token, and tokens with a control character that is no line break: JSON needs none.
// Immutable and cheap to copy.
class Vocabulary {
 public:
  // `vocab_size`: of a row of logits.
  Vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size);

 private:
  friend Grammar compile_json_schema(const Vocabulary&, std::string_view, const std::string&);
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// How far one answer is. One thread at a time.
class Matcher {
 public:
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;
  ~Matcher();

  // One more that stands where this one does, and goes its own way.
  [[nodiscard]] Matcher fork() const;
  // Which tokens may come next: none where the answer has ended. num_mask_words() words.
  void fill_mask(std::span<uint32_t> bits) const;
  // Goes on behind the token; false, and stays, where it may not come next.
  [[nodiscard]] bool accept(int32_t token);
  // Takes back the last `count` tokens that were accepted.
  void rollback(int64_t count);
  // An end token was accepted.
  [[nodiscard]] bool is_ended() const;
  [[nodiscard]] int64_t vocab_size() const;

 private:
  friend class Grammar;
  struct Impl;
  explicit Matcher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A schema compiled for a vocabulary. Immutable and cheap to copy; any thread.
class Grammar {
 public:
  // The matcher of an answer that ends with one of these tokens; an empty list is an Error.
  [[nodiscard]] Matcher start(const std::vector<int32_t>& end_tokens) const;

 private:
  friend Grammar compile_json_schema(const Vocabulary&, std::string_view, const std::string&);
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Throws Error for a schema that check_json_schema() refuses, and for one of which the library
// says that no answer fits it, or that it does not keep all of it. `where` is what people call it.
// An object's properties come in the order of the schema, and others behind them where
// additionalProperties lets them. All is on one line, with a space behind commas and colons: a
// model that may write white space without end does.
Grammar compile_json_schema(const Vocabulary& vocabulary, std::string_view schema,
                            const std::string& where);

}  // namespace strata::structured
