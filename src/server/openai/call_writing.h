// SPDX-License-Identifier: Apache-2.0
// How each family writes calls of tools, for grammars that let a model write nothing else: one way
// of those that its reader (tool_call.h) takes, that of the model's own chat template.
#pragma once
#include <cstdint>
#include <string>

#include "text/chat_template.h"

namespace strata::server {

// `before`, then calls with `between` among them, then `after`. A call is `open` NAME `middle`
// ARGUMENTS `close`.
enum class ArgumentsForm : uint8_t {
  kJson,      // an object
  kFunction,  // <parameter=NAME>, a line each for it, its bare value and </parameter>
  kDsml,      // parameters that say whether their values are bare texts, else JSON
  kGemma,     // an object with bare keys, whose texts have quotes of their own
};

struct CallWriting {
  std::string before = {}, open, middle, close, between = {}, after = {};
  ArgumentsForm arguments = ArgumentsForm::kJson;
  bool quotes_name = false;  // the name stands in a string of JSON
  std::string lead;          // what calls begin with, by which free text ends
};

CallWriting write_gemma(const text::ChatTemplate& chat);
CallWriting write_dsml(const text::ChatTemplate& chat);
CallWriting write_deepseek_v3(const text::ChatTemplate& chat);
CallWriting write_mistral(const text::ChatTemplate& chat);
CallWriting write_function(const text::ChatTemplate& chat);
CallWriting write_hermes(const text::ChatTemplate& chat);
CallWriting write_llama(const text::ChatTemplate& chat);

}  // namespace strata::server
