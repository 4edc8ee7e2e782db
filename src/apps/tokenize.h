// SPDX-License-Identifier: Apache-2.0
// strata tokenize: JSON lines in, JSON lines out: text -> ids, ids -> text, messages -> text.
#pragma once
#include <string>

namespace strata::apps {

struct TokenizeOptions {
  std::string tokenizer;  // a model directory, a GGUF file or a tokenizer.json
  std::string in;         // JSONL
  std::string out;        // JSONL, written whole or not at all
};

// The exit code is 0; a fault is an Error that names the line, and then nothing is written.
int run_tokenize(const TokenizeOptions& options);

}  // namespace strata::apps
