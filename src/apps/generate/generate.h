// SPDX-License-Identifier: Apache-2.0
// strata generate: continues a prompt, streaming to stdout. The prompt is encoded as plain text
// with what the tokenizer's post-processor adds; chat (apps/generate/chat.h) is the command that
// uses the chat template. Ctrl-C ends the text where it is: exit code 130.
#pragma once
#include <string>

#include "apps/generate/generation.h"

namespace strata::apps {

struct GenerateOptions {
  GenerationOptions generation;
  std::string prompt;       // "-": stdin's text
  bool has_prompt = false;  // without: stdin's text, where it is no terminal
  bool echo = false;        // print the prompt before its continuation
  bool json = false;        // one line of JSON instead of a stream
};

int run_generate(const GenerateOptions& options);

}  // namespace strata::apps
