// SPDX-License-Identifier: Apache-2.0
// What somebody likely meant who typed a name that there is not.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace strata::apps {

// The names that `typed` is close to, the closest first and three at most: the one that other
// programs call so ("learning-rate" for "lr"), one with other dashes or capitals, one or two
// letters away (of five or fewer: one; two neighbours in the wrong order are one), or begun with
// it.
std::vector<std::string> similar_options(std::string_view typed,
                                         std::span<const std::string> names);
std::vector<std::string> similar_commands(std::string_view typed,
                                          std::span<const std::string> names);

// "; did you mean --lr or --ls?", each behind `before`; empty for none.
std::string did_you_mean(std::span<const std::string> names, std::string_view before);

// Insertions, removals, replacements and swaps of neighbours that make one text of the other.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace strata::apps
