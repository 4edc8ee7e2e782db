// SPDX-License-Identifier: Apache-2.0
#include "model/families/renaming.h"

namespace strata::model {

std::string rename_all(std::string text, std::span<const Renaming> renamings) {
  for (const auto& [from, to] : renamings) {
    for (size_t at = text.find(from); at != std::string::npos;
         at = text.find(from, at + to.size())) {
      text.replace(at, from.size(), to);
    }
  }
  return text;
}

}  // namespace strata::model
