// SPDX-License-Identifier: Apache-2.0
// The picture of a run, loss.svg, from the records of its metrics.jsonl: losses, and below them
// what the optimizer did, the learning rate and the gradient norm. Pure function.
#pragma once
#include <span>
#include <string>

#include "report/metrics_log.h"

namespace strata::apps {

std::string training_curves(std::span<const report::MetricsRecord> records);

}  // namespace strata::apps
