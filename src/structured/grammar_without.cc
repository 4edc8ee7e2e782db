// SPDX-License-Identifier: Apache-2.0
// structured/grammar.h of a build without XGrammar. Whoever asks calls require_grammars() first, by
// way of a Vocabulary, so nothing behind that is reached.
#include "base/check.h"
#include "base/error.h"
#include "structured/grammar.h"

namespace strata::structured {

struct Vocabulary::Impl {
  std::vector<std::string> texts;
};
struct Grammar::Impl {
  std::vector<std::string> warnings;
};
struct Matcher::Impl {};

void require_grammars() {
  throw Error(ErrorCode::kUnsupported,
              "this strata was built without answers that fit a schema (STRATA_STRUCTURED); "
              "tools/fetch_xgrammar.sh says why, and `make build` builds it with them");
}

Vocabulary::Vocabulary(const text::Tokenizer&, int64_t, const VocabularyMarks&) {
  require_grammars();
}
Vocabulary::Vocabulary(std::vector<std::string>) { require_grammars(); }
const std::vector<std::string>& Vocabulary::texts() const { return impl_->texts; }

Grammar compile_grammar(const Vocabulary&, const GrammarSource&, const std::string&) {
  require_grammars();
  return {};
}

Matcher Grammar::start(const std::vector<int32_t>&) const {
  require_grammars();
  return Matcher(nullptr);
}
const std::vector<std::string>& Grammar::warnings() const { return impl_->warnings; }
int64_t Grammar::num_bytes() const { return 0; }
std::string Grammar::to_bytes() const { return ""; }
Grammar Grammar::from_bytes(const Vocabulary&, const GrammarSource&, const std::string&,
                            std::vector<std::string>) {
  require_grammars();
  return {};
}

Matcher::Matcher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;
Matcher::~Matcher() = default;

Matcher Matcher::fork() const { return Matcher(nullptr); }
void Matcher::fill_mask(std::span<uint32_t>) const { CHECK(false); }
bool Matcher::accept(int32_t) { return false; }
void Matcher::rollback(int64_t) { CHECK(false); }
bool Matcher::is_ended() const { return true; }
int64_t Matcher::vocab_size() const { return 0; }

}  // namespace strata::structured
