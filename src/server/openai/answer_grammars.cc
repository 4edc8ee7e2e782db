// SPDX-License-Identifier: Apache-2.0
#include "server/openai/answer_grammars.h"

#include "server/openai/openai_error.h"
#include "server/openai/tool_grammar.h"

namespace strata::server {

std::optional<structured::Vocabulary> AnswerGrammars::find_vocabulary(
    const ServedText& text) const {
  const MutexLock lock(mutex_);
  const auto found = vocabularies_.find(&text);
  return found == vocabularies_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<AnswerGrammars::Held> AnswerGrammars::find(const std::string& tenant,
                                                         const ServedText& text,
                                                         const AnswerConstraint& constraint) {
  if (store_ == nullptr)
    refuse_parameter(constraint.param, "is not supported: this server makes no grammars");
  const std::optional<structured::Vocabulary> vocabulary = find_vocabulary(text);
  if (!vocabulary) return std::nullopt;
  Held held = store_->find(tenant, *vocabulary, constraint.source);
  return held == nullptr ? std::nullopt : std::optional(std::move(held));
}

AnswerGrammars::Held AnswerGrammars::compile(const std::string& tenant, const ServedText& text,
                                             int64_t vocab_size,
                                             const AnswerConstraint& constraint) {
  std::optional<structured::Vocabulary> vocabulary = find_vocabulary(text);
  if (!vocabulary) {
    vocabulary.emplace(make_answer_vocabulary(text, vocab_size));
    const MutexLock lock(mutex_);
    vocabulary = vocabularies_.try_emplace(&text, *vocabulary).first->second;
  }
  try {
    return store_->compile(tenant, *vocabulary, constraint.source, constraint.param);
  } catch (const structured::CompileStopped& stopped) {
    throw OpenAiFault(stopped.code, stopped.what(), constraint.param, "schema_too_complex");
  } catch (const Error& error) {
    if (error.code != ErrorCode::kInvalidArgument) throw;
    throw OpenAiFault(error.code, error.what(), constraint.param, "invalid_schema");
  }
}

}  // namespace strata::server
