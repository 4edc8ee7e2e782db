#include "apps/text_stack.h"

#include "base/error.h"

namespace strata::apps {

TextStack::TextStack(const std::string& model_dir)
    : dir_(model_dir),
      tokenizer_(text::Tokenizer::load(model_dir)),
      end_tokens_(data::load_end_tokens(model_dir, tokenizer_)),
      template_(text::ChatTemplate::load(model_dir)) {}

std::string TextStack::render(const text::ChatRequest& request) const {
  if (!template_) {
    throw Error(ErrorCode::kInvalidArgument,
                dir_ +
                    ": no chat template (chat_template.jinja, or chat_template in "
                    "tokenizer_config.json); is it a base model?");
  }
  return template_->render(request);
}

}  // namespace strata::apps
