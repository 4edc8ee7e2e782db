// SPDX-License-Identifier: Apache-2.0
// What an SDK asks when it starts. POST client/config: how it should talk to this server. POST
// client/dynamic_config: the same, of what may change. POST telemetry: taken, and not read.
#include <algorithm>

#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response get_client_config(Service& service, const Request& request) {
  const text::JsonBody body(request.body, "client/config");
  // Chunks must fit the body limit after serialization, which the client only estimates.
  const int64_t chunk_bytes = std::min<int64_t>(5'000'000, service.options().max_body / 2);
  return json_response(200,
                       JsonObject{{"use_pyqwest_transport", false},
                                  {"pjwt_auth_enabled", false},
                                  {"credential_default_source", "api_key"},
                                  {"parallel_fwdbwd_chunks", true},
                                  {"proto_compress_fwdbwd", true},
                                  {"proto_write_fwdbwd", true},
                                  {"fwd_via_fwdbwd", true},
                                  {"create_model_via_load_weights", true},
                                  {"sample_use_retrieve_futures", false},
                                  {"sample_join_sampling_session", false},
                                  {"custom_loss_server_side", false},
                                  {"sample_no_retries", false},
                                  {"fwdbwd_max_chunk_len", 1024},
                                  {"fwdbwd_max_chunk_bytes_count", chunk_bytes},
                                  {"sample_max_concurrent_requests",
                                   std::min<int64_t>(2000, service.options().max_queued_samples)}}
                           .text());
}

Response dynamic_config(Service&, const Request&) {
  return json_response(
      200, JsonObject{{"refresh_interval_sec", 300}, {"sample_cancel_enabled", true}}.text());
}

Response telemetry(Service&, const Request&) {
  return json_response(200, JsonObject{{"status", "accepted"}}.text());
}

}  // namespace

constinit const Operation kClientConfig = {.path = "client/config",
                                           .run = get_client_config,
                                           .scope = Scope::kRead,
                                           .effect = Effect::kUpkeep,
                                           .size = BodySize::kTiny};

constinit const Operation kDynamicConfig = {.path = "client/dynamic_config",
                                            .run = dynamic_config,
                                            .body = BodyKind::kNone,
                                            .scope = Scope::kRead,
                                            .effect = Effect::kUpkeep,
                                            .size = BodySize::kUnread};

constinit const Operation kTelemetry = {.path = "telemetry",
                                        .run = telemetry,
                                        .body = BodyKind::kNone,
                                        .scope = Scope::kRead,
                                        .effect = Effect::kUpkeep,
                                        .size = BodySize::kUnread};

}  // namespace strata::server
