// SPDX-License-Identifier: Apache-2.0
// GET samplers/{}: what a sampling session samples from.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kGetSampler;

}  // namespace strata::server
