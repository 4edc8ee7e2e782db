// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/operations.h"

#include <functional>
#include <string>

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

Handler handler_of(const Operation& operation, Service& service) {
  if (const auto* run = std::get_if<Operation::AtOnce>(&operation.run))
    return at_once(std::bind_front(*run, std::ref(service)));
  return std::bind_front(std::get<Operation::Later>(operation.run), std::ref(service));
}

}  // namespace

void add_operations(Router& router, Service& service) {
  for (const Operation* operation : kAll) {
    router.add({.method = operation->method,
                .pattern = std::string("/api/v1/") + operation->path,
                .body = operation->body,
                .handler = handler_of(*operation, service),
                .needs_key = operation->needs_key,
                .size = operation->size,
                .scope = operation->scope,
                .effect = operation->effect,
                .watches_peer = operation->watches_peer,
                .needs_admin = operation->needs_admin});
  }
}

}  // namespace strata::server
