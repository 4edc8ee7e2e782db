// SPDX-License-Identifier: Apache-2.0
// What only Gemma's GGUF files say, as members of config.json.
#pragma once
#include "checkpoint/gguf/config_members.h"

namespace strata {

void add_gemma3_members(ConfigMembers& members);
// With the sizes of heads and of MLPs, which differ by layer.
void add_gemma4_members(ConfigMembers& members);

}  // namespace strata
