// SPDX-License-Identifier: Apache-2.0
// What a server's clients may speak to its models in: tokenizers, chat templates, and how tokens
// are chosen where a request does not say.
#pragma once
#include <optional>
#include <vector>

#include "apps/serve/engine_host.h"
#include "server/openai/served_text.h"
#include "server/tinker/base_names.h"
#include "server/tinker/options/options.h"

namespace strata::apps {

// The texts of each model of the host, with those of the adapters that `names` has; nothing for a
// model without a tokenizer.json. A template or settings of a model that cannot be read are a
// warning, and left out; of what the options name they are an Error, and so is an adapter's
// tokenizer that does not fit its base.
std::vector<std::optional<server::ServedText>> load_served_texts(
    const EngineHost& host, const server::ServeOptions& options, const server::BaseNames& names);

// The file that --chat-template names for each model of `names`; empty: none. Throws Error for a
// file that is not there.
std::vector<std::string> find_template_files(const std::vector<std::string>& chat_templates,
                                             const server::BaseNames& names);

}  // namespace strata::apps
