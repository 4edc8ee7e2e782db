// SPDX-License-Identifier: Apache-2.0
#include "server/openai/call_writing.h"

namespace strata::server {
namespace {

const std::string kFence = "```json";
const std::string kSep = "<\uff5ctool\u2581sep\uff5c>";

}  // namespace

CallWriting write_gemma(const text::ChatTemplate&) {
  return {.open = "<|tool_call>call:",
          .middle = "",
          .close = "<tool_call|>",
          .arguments = ArgumentsForm::kGemma,
          .lead = "<|tool_call>"};
}

CallWriting write_dsml(const text::ChatTemplate& chat) {
  CallWriting out = {.before = "<\uff5cDSML\uff5ctool_calls>\n",
                     .open = "<\uff5cDSML\uff5cinvoke name=\"",
                     .middle = "\">\n",
                     .close = "</\uff5cDSML\uff5cinvoke>",
                     .between = "\n",
                     .after = "\n</\uff5cDSML\uff5ctool_calls>",
                     .arguments = ArgumentsForm::kDsml,
                     .lead = "<\uff5cDSML\uff5ctool_calls>"};
  if (chat.mentions(out.lead)) return out;
  out.before = "<\uff5cDSML\uff5cfunction_calls>\n";
  out.after = "\n</\uff5cDSML\uff5cfunction_calls>";
  out.lead = "<\uff5cDSML\uff5cfunction_calls>";
  return out;
}

CallWriting write_deepseek_v3(const text::ChatTemplate& chat) {
  CallWriting out = {.before = "<\uff5ctool\u2581calls\u2581begin\uff5c>",
                     .open = "<\uff5ctool\u2581call\u2581begin\uff5c>",
                     .middle = kSep,
                     .close = "<\uff5ctool\u2581call\u2581end\uff5c>",
                     .after = "<\uff5ctool\u2581calls\u2581end\uff5c>",
                     .lead = "<\uff5ctool\u2581calls\u2581begin\uff5c>"};
  if (!chat.mentions(kFence)) return out;
  out.open += "function" + kSep;
  out.middle = "\n" + kFence + "\n";
  out.close = "\n```" + out.close;
  out.between = "\n";
  return out;
}

CallWriting write_mistral(const text::ChatTemplate& chat) {
  if (chat.mentions("[ARGS]"))
    return {.open = "[TOOL_CALLS]", .middle = "[ARGS]", .close = "", .lead = "[TOOL_CALLS]"};
  return {.before = "[TOOL_CALLS][",
          .open = "{\"name\": \"",
          .middle = "\", \"arguments\": ",
          .close = "}",
          .between = ", ",
          .after = "]",
          .quotes_name = true,
          .lead = "[TOOL_CALLS]"};
}

CallWriting write_function(const text::ChatTemplate& chat) {
  const bool is_wrapped = chat.mentions("<tool_call>");
  return {.open = is_wrapped ? "<tool_call>\n<function=" : "<function=",
          .middle = ">\n",
          .close = is_wrapped ? "</function>\n</tool_call>" : "</function>",
          .between = "\n",
          .arguments = ArgumentsForm::kFunction,
          .lead = is_wrapped ? "<tool_call>" : "<function="};
}

CallWriting write_hermes(const text::ChatTemplate&) {
  return {.open = "<tool_call>\n{\"name\": \"",
          .middle = "\", \"arguments\": ",
          .close = "}\n</tool_call>",
          .between = "\n",
          .quotes_name = true,
          .lead = "<tool_call>"};
}

CallWriting write_llama(const text::ChatTemplate&) {
  return {.open = "{\"name\": \"",
          .middle = "\", \"parameters\": ",
          .close = "}",
          .between = "; ",
          .quotes_name = true,
          .lead = "{\"name\": \""};
}

}  // namespace strata::server
