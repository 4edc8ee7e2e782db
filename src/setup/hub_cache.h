// SPDX-License-Identifier: Apache-2.0
// Models and data sets by their name on the Hugging Face hub, in the cache that `hf download`
// fills:
//   CACHE/models--ORG--NAME/refs/main -> HASH;  CACHE/models--ORG--NAME/snapshots/HASH/config.json
// and so in datasets--ORG--NAME.
// Nothing is downloaded, and nothing is written.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace strata::apps {

// "ORG/NAME" as the hub allows it: each part of letters, digits, '.', '_' and '-', 96 at most,
// begun and ended by neither '.' nor '-', without "--" and "..".
bool is_hub_name(std::string_view text);

enum class HubKind : uint8_t { kModel, kDataset };

// The folder of its files, of the first cache that has it: what refs/main names, or the
// only snapshot where there is no refs/main. Caches are HF_HUB_CACHE, HF_HOME/hub and
// ~/.cache/huggingface/hub (base/env.h).
std::optional<std::string> find_in_hub_cache(const std::string& name,
                                             HubKind kind = HubKind::kModel);

// "ORG/NAME" of a folder that find_in_hub_cache() gave; empty of any other.
std::string hub_name_of_snapshot(const std::string& dir);
// "Qwen/Qwen3-0.6B" of models--Qwen--Qwen3-0.6B, a folder of a cache; empty of any other.
std::string hub_name_of_cache_folder(const std::string& folder);

// "`hf download ORG/NAME` (or `strata pull ORG/NAME`) gets it": where a name is not in a cache.
std::string how_to_get(const std::string& name);

}  // namespace strata::apps
