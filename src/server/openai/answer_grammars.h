// SPDX-License-Identifier: Apache-2.0
// AnswerGrammars: the grammars that answers of served models fit, out of the server's store of
// them, with the vocabularies that they are of. A vocabulary is made when the first grammar of its
// model is asked for, and stays. Any thread.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "server/openai/answer_order.h"
#include "server/openai/served_text.h"
#include "structured/grammar_store.h"

namespace strata::server {

class AnswerGrammars {
 public:
  using Held = structured::GrammarStore::Held;

  // Borrows it; null: every constraint is refused.
  explicit AnswerGrammars(structured::GrammarStore* store) : store_(store) {}

  // Nothing: it has to be compiled.
  std::optional<Held> find(const std::string& tenant, const ServedText& text,
                           const AnswerConstraint& constraint);
  // May take seconds. Throws OpenAiFault for what is no grammar, or takes too much. Null: the
  // tenant's grammars in use leave no space for it.
  Held compile(const std::string& tenant, const ServedText& text, int64_t vocab_size,
               const AnswerConstraint& constraint);

 private:
  std::optional<structured::Vocabulary> find_vocabulary(const ServedText& text) const;

  structured::GrammarStore* store_;
  mutable Mutex mutex_;
  std::map<const ServedText*, structured::Vocabulary> vocabularies_ GUARDED_BY(mutex_);
};

}  // namespace strata::server
