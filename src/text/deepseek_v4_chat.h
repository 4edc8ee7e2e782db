// SPDX-License-Identifier: Apache-2.0
// The conversation format of DeepSeek-V4, whose checkpoints come with a Python encoder in place of
// a chat template (encoding/encoding_dsv4.py of its repository). Results of tools become blocks of
// user turns, in the order of their calls; neighbouring user turns are one; tools are written into
// the first system turn. Any thread.
//
// Variables: `thinking` or `enable_thinking` (false), or `thinking_mode` "thinking" or "chat";
// `drop_thinking` (true: reasoning before the last user turn is left out, unless there are tools);
// `reasoning_effort` "max" or "high". Roles: system, developer, user, assistant, tool,
// latest_reminder; a user's turn may name one of the encoder's tasks, as `task`.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace strata::text {

// What a built-in format is given.
struct ChatFormat {
  Value messages;  // list of dicts without null members
  Value tools;     // list of dicts, or None
  std::vector<std::pair<std::string, Value>> variables;
  bool add_generation_prompt = false;
};

// An Error that names the message and its member at fault.
std::string render_deepseek_v4(const ChatFormat& chat);

}  // namespace strata::text
