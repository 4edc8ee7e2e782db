// SPDX-License-Identifier: Apache-2.0
// Files of examples as commands read them: with a model's tokenizer and template, progress, and a
// line about what was seen in each.
#pragma once
#include <string>
#include <vector>

#include "data/dataset.h"
#include "setup/text_stack.h"

namespace strata::apps {

struct ReadChoice {
  std::string train_on = "last";  // last, all
  int64_t max_length = 2048;
  std::string overlong = "drop";  // drop, cut, split
  std::string fields = {};        // NAME=FIELD,... (data/field_names.h)
  bool looks_only = false;        // data/dataset.h, as the next two
  bool pairs = false;
  bool prompts = false;
};

// `option` names the option that gave the files.
data::Dataset read_examples(const std::string& option, const std::vector<data::Source>& sources,
                            const TextStack& text, const ReadChoice& choice);

}  // namespace strata::apps
