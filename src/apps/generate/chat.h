// SPDX-License-Identifier: Apache-2.0
// strata chat: a conversation through the model's own chat template. With a prompt: one answer.
// Without: turns from stdin until it ends (apps/generate/turn_reader.h), and commands, /help among
// them. At a terminal Ctrl-C ends an answer and a fault ends nothing; else Ctrl-C ends with exit
// code 130 behind what was answered.
#pragma once
#include <string>

#include "apps/generate/conversation.h"

namespace strata::apps {

struct ChatOptions : ConversationOptions {
  std::string prompt;
};

int run_chat(const ChatOptions& options);

}  // namespace strata::apps
