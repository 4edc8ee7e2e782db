// SPDX-License-Identifier: Apache-2.0
// What every accepted body of forward_backward keeps, whatever its form.
#pragma once
#include <cstdlib>

#include "api/command.h"
#include "server/tinker/protocol/forward_backward.h"

namespace strata::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline void check_pass(const api::ForwardBackward& command) {
  for (const api::Datum& datum : command.data) {
    require(!datum.tokens.empty());
    const size_t targets = datum.tokens.size() * static_cast<size_t>(datum.targets_per_token());
    require(datum.targets.empty() || datum.targets.size() == targets);
    for (const api::LossInputRow& input : api::kLossInputs) {
      const size_t size = datum.inputs[input.id].size();
      const bool of_targets = input.id == api::LossInput::kWeights;
      require(size == 0 || size == (of_targets ? datum.targets.size() : datum.tokens.size()));
    }
  }
  require(server::fingerprint_of(command) == server::fingerprint_of(command));
}

}  // namespace strata::fuzz
