// SPDX-License-Identifier: Apache-2.0
// What this machine does in a second, measured: the limits that the time of planned work
// (engine/plan/cost.h) is predicted with. Engine thread only.
#pragma once
#include <cstdint>

#include "backend/backend.h"
#include "engine/plan/cost.h"
#include "ops/limits.h"

namespace strata::planner {

// The best of a few short probes of about 0.1 s together, since one that the system interrupts is
// no limit.
engine::MachineLimits probe_limits(ops::LimitProbe& probe, DType dtype);
// Probes with no more memory than `most_bytes`, which is given back.
engine::MachineLimits probe_limits(Backend& backend, DType dtype, int64_t most_bytes);

}  // namespace strata::planner
