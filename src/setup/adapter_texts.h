// SPDX-License-Identifier: Apache-2.0
// What an adapter's folder has of text: the chat template and the tokenizer that it was trained
// with, which TRL, Unsloth and axolotl save next to it. Of folders that the operator names; an
// archive of a tenant's is never asked for them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "base/model_texts.h"
#include "setup/text_stack.h"

namespace strata::apps {

enum class OwnText : uint8_t {
  kNone,   // the folder has none
  kSame,   // the base has the same
  kAlone,  // the base has none
  kOther,  // the base has another
};

struct AdapterTexts {
  OwnText chat_template = OwnText::kNone;
  OwnText tokenizer = OwnText::kNone;
  int64_t num_more_tokens = 0;  // added ones, beyond those of the base's tokenizer

  [[nodiscard]] bool has_own_template() const {
    return chat_template == OwnText::kAlone || chat_template == OwnText::kOther;
  }
  [[nodiscard]] bool has_own_tokenizer() const {
    return tokenizer == OwnText::kAlone || tokenizer == OwnText::kOther;
  }
  [[nodiscard]] bool has_own() const { return has_own_template() || has_own_tokenizer(); }
};

// Error, with the first that differs, where the tokenizer gives other ids than the base's, or has
// tokens beyond the rows of the base.
AdapterTexts read_adapter_texts(const ModelTexts& base, const std::string& adapter);

// What the folder of an adapter whose base is not here says of its texts.
AdapterTexts read_adapter_texts_alone(const std::string& adapter);

// The base's files, with those of the adapter in their place: its tokenizer, and its template with
// the names of special tokens that go with that, unless --chat-template names another or the
// base's. No adapter: the base's. Error as above.
ModelTexts texts_with_adapter(const ModelTexts& base, const std::string& adapter,
                              const TemplateChoice& choice = {});

// The line that says whose template is used; empty where there is no choice.
std::string template_choice_line(const ModelTexts& base, const std::string& adapter,
                                 const TemplateChoice& choice = {});

// Writes what an adapter's folder has of text, and texts_with_adapter() takes, into a folder that
// is there; and the template that --chat-template names.
void copy_adapter_texts(const ModelTexts& base, const std::string& adapter,
                        const TemplateChoice& choice, const std::string& to_dir);

}  // namespace strata::apps
