// SPDX-License-Identifier: Apache-2.0
#include "structured/lead.h"

#include <utility>

#include "base/check.h"

namespace strata::structured {

Lead::Lead(std::string mark, const std::vector<std::string>& token_bytes)
    : mark_(std::move(mark)), fallback_(mark_.size() + 1, 0), forbidden_(mark_.size()) {
  CHECK(!mark_.empty());
  for (size_t i = 1; i < mark_.size(); ++i) fallback_[i + 1] = step(fallback_[i], mark_[i]);
  for (size_t token = 0; token < token_bytes.size(); ++token) {
    // Only a token with the mark's last byte before its own last one can go beyond it.
    const std::string& bytes = token_bytes[token];
    if (bytes.size() < 2 || bytes.find(mark_.back()) >= bytes.size() - 1) continue;
    for (size_t state = 0; state < mark_.size(); ++state) {
      if (next(static_cast<int>(state), bytes) == kBeyond)
        forbidden_[state].push_back(static_cast<int32_t>(token));
    }
  }
}

int Lead::step(int state, char byte) const {
  while (state > 0 && mark_[static_cast<size_t>(state)] != byte)
    state = fallback_[static_cast<size_t>(state)];
  return mark_[static_cast<size_t>(state)] == byte ? state + 1 : 0;
}

int Lead::next(int state, const std::string& bytes) const {
  for (size_t i = 0; i < bytes.size(); ++i) {
    state = step(state, bytes[i]);
    if (is_complete(state)) return i + 1 == bytes.size() ? state : kBeyond;
  }
  return state;
}

}  // namespace strata::structured
