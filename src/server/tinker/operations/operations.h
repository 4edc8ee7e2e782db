// SPDX-License-Identifier: Apache-2.0
// Every operation of the protocol. Each is defined in a file of this folder, which says what it
// does; a new one also has a line here and one in operations.cc.
#pragma once
#include "server/tinker/operations/operation.h"

namespace strata::server {

extern const Operation kAsample;
extern const Operation kCancelFuture;
extern const Operation kCancelRequest;
extern const Operation kCapabilities;
extern const Operation kClientConfig;
extern const Operation kDynamicConfig;
extern const Operation kTelemetry;
extern const Operation kCreateModel;
extern const Operation kCreateSamplingSession;
extern const Operation kCreateSession;
extern const Operation kFinishSession;
extern const Operation kForward;
extern const Operation kForwardBackward;
extern const Operation kGetInfo;
extern const Operation kGetSampler;
extern const Operation kHealth;
extern const Operation kReady;
extern const Operation kLoadWeights;
extern const Operation kOptimStep;
extern const Operation kRetrieveFuture;
extern const Operation kSaveWeights;
extern const Operation kSaveWeightsExternal;
extern const Operation kSaveWeightsForSampler;
extern const Operation kSessionHeartbeat;
extern const Operation kUnloadModel;
extern const Operation kUsage;
extern const Operation kWeightsInfo;

// Adds all of them, which work on `service`; it outlives the router.
void add_operations(Router& router, Service& service);

}  // namespace strata::server
