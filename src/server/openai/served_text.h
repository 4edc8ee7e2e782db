// SPDX-License-Identifier: Apache-2.0
// What the server knows of a base model's text, and of adapters' that the operator names: of those
// that have a tokenizer.json. Immutable.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "api/batch.h"
#include "text/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::server {

struct ServedText {
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat = {};
  std::string vars = {};                 // for the template, where a request does not say: JSON
  std::optional<int32_t> turn_end = {};  // ends an answer in a chat, besides the end tokens
  // How tokens are chosen where a request does not say: generation_config.json's.
  api::SampleRequest defaults = {};
  int64_t longest_sample = INT64_MAX;  // positions that the cache has for one, prompt and answer
  std::string build = {};              // of the program, for fingerprints
  // The texts of adapters with a template or tokenizer of their own, by BaseName::adapter.
  std::map<std::string, std::shared_ptr<const ServedText>> of_adapters = {};
};

}  // namespace strata::server
