#include "apps/text_stack.h"

#include "base/error.h"

namespace strata::apps {

TextStack::TextStack(const std::string& model_dir)
    : dir_(model_dir),
      tokenizer_(text::Tokenizer::load(model_dir)),
      end_tokens_(data::load_end_tokens(model_dir, tokenizer_)) {}

std::string TextStack::render(const std::string&, const std::string&, bool) const {
  throw Error(ErrorCode::kUnsupported, dir_ + ": chat templates are not built yet");
}

}  // namespace strata::apps
