// SPDX-License-Identifier: Apache-2.0
// A Modelfile of ollama for a GGUF file: where it is, the chat template as ollama writes one, how
// tokens are drawn and what ends an answer.
#pragma once
#include <string>

#include "base/model_texts.h"

namespace strata::apps {

// `gguf` as the FROM line has it. ollama's templates are Go's, so the model's own is rendered and
// taken apart; where ollama's form cannot say it, there is no TEMPLATE line, and ollama takes what
// it knows of the template in the GGUF file.
std::string make_modelfile(const ModelTexts& texts, const std::string& gguf);

}  // namespace strata::apps
