// SPDX-License-Identifier: Apache-2.0
// End tokens of a model directory: which id closes a text in training, and which ids end
// generation.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/model_texts.h"
#include "text/tokenizer/tokenizer.h"

namespace strata::data {

struct EndTokens {
  // Appended to a completion or text: tokenizer_config.json's eos_token, else the first
  // eos_token_id of generation_config.json, else config.json's. -1: the directory names none.
  int32_t append = -1;
  // Ids that end generation: every eos_token_id of generation_config.json, else config.json's;
  // `append` is always among them. Ascending.
  std::vector<int32_t> stop;
};

// An Error names the file whose eos_token the tokenizer lacks, or whose id is outside it.
EndTokens load_end_tokens(const ModelTexts& texts, const text::Tokenizer& tokenizer);

// What ends a sample of the server: every eos_token_id of generation_config.json and of
// config.json, and tokenizer_config.json's eos_token. Ascending.
std::vector<int32_t> load_stop_ids_of_all_configs(const ModelTexts& texts,
                                                  const text::Tokenizer& tokenizer);

}  // namespace strata::data
