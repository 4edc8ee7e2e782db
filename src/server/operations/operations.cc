// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "server/operations/asample.h"
#include "server/operations/cancel.h"
#include "server/operations/capabilities.h"
#include "server/operations/client_config.h"
#include "server/operations/create_model.h"
#include "server/operations/create_sampling_session.h"
#include "server/operations/create_session.h"
#include "server/operations/finish_session.h"
#include "server/operations/forward.h"
#include "server/operations/forward_backward.h"
#include "server/operations/get_info.h"
#include "server/operations/get_sampler.h"
#include "server/operations/health.h"
#include "server/operations/load_weights.h"
#include "server/operations/operation.h"
#include "server/operations/optim_step.h"
#include "server/operations/retrieve_future.h"
#include "server/operations/save_weights.h"
#include "server/operations/save_weights_external.h"
#include "server/operations/save_weights_for_sampler.h"
#include "server/operations/session_heartbeat.h"
#include "server/operations/unload_model.h"
#include "server/operations/usage.h"
#include "server/operations/weights_info.h"

namespace strata::server {
namespace {

constexpr const Operation* kOperations[] = {
    // clang-format off
    &kHealth, &kReady,                                                      // of the process
    &kClientConfig, &kDynamicConfig, &kTelemetry, &kCapabilities,           // an SDK's start
    &kCreateSession, &kSessionHeartbeat, &kFinishSession,                   // sessions
    &kCreateModel, &kGetInfo, &kUnloadModel, &kWeightsInfo,                 // models
    &kForwardBackward, &kForward, &kOptimStep, &kLoadWeights,               // training
    &kSaveWeights, &kSaveWeightsForSampler, &kSaveWeightsExternal,          // saves
    &kCreateSamplingSession, &kGetSampler, &kAsample,                       // sampling
    &kRetrieveFuture, &kCancelFuture, &kCancelRequest, &kUsage,             // of any request
    // clang-format on
};

Handler handler_of(const Operation& operation, Service& service) {
  if (const auto* run = std::get_if<Operation::AtOnce>(&operation.run)) {
    return at_once(
        [&service, run = *run](const Request& request) { return run(service, request); });
  }
  return
      [&service, run = std::get<Operation::Later>(operation.run)](
          Request&& request, const Respond& respond) { run(service, std::move(request), respond); };
}

}  // namespace

void add_operations(Router& router, Service& service) {
  for (const Operation* operation : kOperations) {
    router.add({.method = operation->method,
                .pattern = std::string("/api/v1/") + operation->path,
                .body = operation->body,
                .handler = handler_of(*operation, service),
                .needs_key = operation->needs_key,
                .size = operation->size,
                .scope = operation->scope,
                .effect = operation->effect});
  }
}

}  // namespace strata::server
