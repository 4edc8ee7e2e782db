// SPDX-License-Identifier: Apache-2.0
// What a server's clients may speak to its models in: tokenizers, chat templates, and how tokens
// are chosen where a request does not say.
#pragma once
#include <optional>
#include <vector>

#include "apps/serve/engine_host.h"
#include "server/openai/served_text.h"

namespace strata::apps {

// Of each model of the host; nothing for one without a tokenizer.json. A template or settings that
// cannot be read are a warning, and left out.
std::vector<std::optional<server::ServedText>> load_served_texts(const EngineHost& host);

}  // namespace strata::apps
