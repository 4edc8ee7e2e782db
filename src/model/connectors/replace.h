// SPDX-License-Identifier: Apache-2.0
// The block's output takes the place of the state: a sublayer before which there is nothing to add
// to, like the input of multi-token prediction.
#pragma once
#include "model/connectors/connector.h"

namespace strata::model {

struct ReplaceConfig {
  friend bool operator==(const ReplaceConfig&, const ReplaceConfig&) = default;
};

extern const ConnectorOps kReplace;

}  // namespace strata::model
