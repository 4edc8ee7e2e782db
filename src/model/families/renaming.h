// SPDX-License-Identifier: Apache-2.0
// Names of tensors and modules in which parts stand for others.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace strata::model {

// Every `first` becomes `second`.
using Renaming = std::pair<std::string_view, std::string_view>;

// `text` after each renaming in turn, everywhere.
std::string rename_all(std::string text, std::span<const Renaming> renamings);

}  // namespace strata::model
