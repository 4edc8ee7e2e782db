// SPDX-License-Identifier: Apache-2.0
// Data sets by their name on the Hugging Face hub, in the cache that `hf download --repo-type
// dataset` fills.
#pragma once
#include <string>
#include <vector>

namespace strata::apps {

// What --data or --eval names: of ORG/NAME or ORG/NAME:WEIGHT that is no file here, the data set's
// files in the cache (those of its training part, where names say so), each with the weight; other
// texts as they are. Throws Error for a data set that is in no cache, has files of Parquet alone,
// or files in several folders.
std::vector<std::string> resolve_data_names(const std::string& option,
                                            const std::vector<std::string>& texts);

}  // namespace strata::apps
