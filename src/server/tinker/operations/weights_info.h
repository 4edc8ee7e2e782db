// SPDX-License-Identifier: Apache-2.0
// POST weights_info: {tinker_path}: what a checkpoint is of.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kWeightsInfo;

}  // namespace strata::server
