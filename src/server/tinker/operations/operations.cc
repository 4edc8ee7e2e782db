// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

constexpr const Operation* kAll[] = {
    &kAsample,                //
    &kCancelFuture,           //
    &kCancelRequest,          //
    &kCapabilities,           //
    &kClientConfig,           //
    &kDynamicConfig,          //
    &kTelemetry,              //
    &kCreateModel,            //
    &kCreateSamplingSession,  //
    &kCreateSession,          //
    &kFinishSession,          //
    &kForward,                //
    &kForwardBackward,        //
    &kGetInfo,                //
    &kGetSampler,             //
    &kHealth,                 //
    &kReady,                  //
    &kLoadWeights,            //
    &kOptimStep,              //
    &kRetrieveFuture,         //
    &kSaveWeights,            //
    &kSaveWeightsExternal,    //
    &kSaveWeightsForSampler,  //
    &kSessionHeartbeat,       //
    &kUnloadModel,            //
    &kUsage,                  //
    &kWeightsInfo,            //
};

}  // namespace

void add_operations(Router& router, Service& service) {
  for (const Operation* operation : kAll) add_endpoint(router, "/api/v1/", *operation, service);
}

}  // namespace strata::server
