// SPDX-License-Identifier: Apache-2.0
// What only Llama 4's GGUF files say, as members of config.json, and what llama.cpp takes as given
// for all of them: chunks, the scale of queries by position, which layers turn nothing.
#pragma once
#include "checkpoint/gguf/config_members.h"

namespace strata {

void add_llama4_members(ConfigMembers& members);

}  // namespace strata
