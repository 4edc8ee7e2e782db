// strata chat: a conversation through the model's own chat template. With a prompt: one answer.
// Without: reads a line a turn from stdin until it ends; /reset starts over, /quit leaves.
#pragma once
#include <string>

#include "apps/generate/generation.h"

namespace strata::apps {

struct ChatOptions {
  GenerationOptions generation;
  std::string prompt;
  std::string system;  // a system turn before all
  std::string vars;    // a JSON object of variables for the template
};

int run_chat(const ChatOptions& options);

}  // namespace strata::apps
