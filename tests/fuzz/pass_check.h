// What every accepted body of forward_backward keeps, whatever its form.
#pragma once
#include <cstdlib>

#include "api/command.h"
#include "server/protocol/forward_backward.h"

namespace strata::fuzz {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline void check_pass(const api::ForwardBackward& command) {
  for (const api::Datum& datum : command.data) {
    require(!datum.tokens.empty());
    const size_t targets =
        datum.tokens.size() * static_cast<size_t>(datum.num_targets > 0 ? datum.num_targets : 1);
    require(datum.targets.empty() || datum.targets.size() == targets);
    require(datum.weights.empty() || datum.weights.size() == datum.targets.size());
    for (const auto* values : {&datum.logprobs, &datum.advantages, &datum.mask}) {
      require(values->empty() || values->size() == datum.tokens.size());
    }
  }
  require(server::fingerprint_of(command) == server::fingerprint_of(command));
}

}  // namespace strata::fuzz
