// The body of asample as a command, checked against the limits of the protocol and of the base
// model. Faults are Errors (400).
#pragma once
#include "api/command.h"
#include "api/work.h"
#include "server/protocol/json_body.h"

namespace strata::server {

struct SampleOrder {
  api::Sample command;  // without a snapshot
  bool record = false;  // record_stability_info
};

// `fallback_seed` serves a request without a seed.
SampleOrder read_sample(const Fields& body, const api::BaseInfo& base, uint64_t fallback_seed);

}  // namespace strata::server
