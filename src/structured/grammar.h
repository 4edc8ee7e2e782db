// SPDX-License-Identifier: Apache-2.0
// Answers that fit a schema: which tokens may come next, so that what is sampled is JSON of it, or
// text of a regular expression or a grammar.
// XGrammar (https://github.com/mlc-ai/xgrammar) does the work, and nothing else of the house
// includes it. A build without it has the same functions, which throw Error{kUnsupported}.
//   const Vocabulary vocabulary(tokenizer, logits_width);
//   const Grammar grammar = compile_grammar(vocabulary, {.text = schema}, "--json-schema FILE");
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

enum class GrammarKind : uint8_t {
  kJsonSchema,
  kRegex,
  kEbnf,  // rules as XGrammar reads them (docs/openai.md), the first of which is `root`
  kTags,  // a structural tag of XGrammar's, which the server makes of the calls of tools
};

// What an answer has to be. Of a JSON schema: properties come in its order, and others behind them
// where additionalProperties lets them; all is on one line, with a space behind commas and colons,
// since a model that may write white space without end does.
struct GrammarSource {
  GrammarKind kind = GrammarKind::kJsonSchema;
  std::string text = {};
  // A keyword that no grammar is made of is passed over and named in Grammar::warnings(); else it
  // is a fault.
  bool is_lenient = false;
  // Up to two line breaks may stand before it, as models write them behind a thought.
  bool may_begin_with_breaks = false;
  // Where the answer begins with free text up to a mark, that mark, and whether an answer may end
  // without it. Empty: the grammar begins at once.
  std::string lead_mark = {};
  bool may_end_in_lead = false;
};

class Grammar;

// Tokens with these texts: that are special though the tokenizer does not say so (a structural tag
// names them by their ids), and that are text although it says they are special.
struct VocabularyMarks {
  std::vector<std::string_view> apart = {};
  std::vector<std::string_view> in_text = {};
};

// The tokens of a model as grammars see them. Never part of an answer are special tokens, ids
// without a token, and tokens with a control character that is no line break: JSON needs none.
// Immutable and cheap to copy.
class Vocabulary {
 public:
  // `vocab_size`: of a row of logits.
  Vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size,
             const VocabularyMarks& marks = {});
  // Makes it of what texts() gave, in another process; it has no bytes of special tokens.
  explicit Vocabulary(std::vector<std::string> texts);

  // What grammars see of each token: its bytes, or nothing.
  [[nodiscard]] const std::vector<std::string>& texts() const;

 private:
  friend class Grammar;
  friend class Matcher;
  friend Grammar compile_grammar(const Vocabulary&, const GrammarSource&, const std::string&);
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

// A source compiled for a vocabulary. Immutable and cheap to copy; any thread.
class Grammar {
 public:
  // The matcher of an answer that ends with one of these tokens; an empty list is an Error.
  [[nodiscard]] Matcher start(const std::vector<int32_t>& end_tokens) const;
  // What of a lenient source is not kept, a line each.
  [[nodiscard]] const std::vector<std::string>& warnings() const;
  // Memory, which grows with the masks that answers need.
  [[nodiscard]] int64_t num_bytes() const;

  // What was compiled, for another process with the same vocabulary: without lead and warnings.
  [[nodiscard]] std::string to_bytes() const;
  // Throws Error for bytes that are not to_bytes() of this vocabulary and source.
  static Grammar from_bytes(const Vocabulary& vocabulary, const GrammarSource& source,
                            const std::string& bytes, std::vector<std::string> warnings);

 private:
  friend class Matcher;
  friend Grammar compile_grammar(const Vocabulary&, const GrammarSource&, const std::string&);
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

// Throws Error for a source that is too long, for a schema that check_json_schema() refuses, and
// for what the library says that no answer fits, or that it does not keep all of it. `where` is
// what people call it.
Grammar compile_grammar(const Vocabulary& vocabulary, const GrammarSource& source,
                        const std::string& where);

}  // namespace strata::structured
