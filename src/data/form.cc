// SPDX-License-Identifier: Apache-2.0
#include "data/form.h"

namespace strata::data {

std::string_view form_description(Form form) {
  switch (form) {
    case Form::kText:
    case Form::kPromptCompletion:
    case Form::kMessages:
      return "";
    case Form::kAlpaca:
      return "Alpaca: instruction, input, output";
    case Form::kShareGpt:
      return "ShareGPT: conversations of from, value";
    case Form::kTurnLists:
      return "TRL: prompt and completion, lists of messages";
    case Form::kPreference:
      return "preference pairs: chosen, rejected";
  }
  return "";
}

}  // namespace strata::data
