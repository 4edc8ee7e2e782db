// SPDX-License-Identifier: Apache-2.0
// The operations of the service as rows: where each is called, who may, how its body is read, what
// it does to its tenant's state, and who answers. A new one is a row here and its handler.
#include <variant>

#include "server/json.h"
#include "server/service/service.h"

namespace strata::server {

struct Service::Operation {
  using AtOnce = Response (Service::*)(const Request&);
  using Later = void (Service::*)(const Request&, const Respond&);
  using Taking = void (Service::*)(Request&&, const Respond&);  // a large body

  const char* method;
  const char* path;  // behind /api/v1/
  std::variant<AtOnce, Later, Taking> handler;
  BodyKind body = BodyKind::kJson;
  Scope scope = Scope::kAll;
  Effect effect = Effect::kChanges;
  BodySize size = BodySize::kSmall;
  bool needs_key = true;

  [[nodiscard]] Route route(Service& service) const;
};

Route Service::Operation::route(Service& service) const {
  struct Bind {
    Service& service;
    Handler operator()(AtOnce member) const {
      return at_once([s = &service, member](const Request& r) { return (s->*member)(r); });
    }
    Handler operator()(Later member) const {
      return [s = &service, member](const Request& r, const Respond& to) { (s->*member)(r, to); };
    }
    Handler operator()(Taking member) const {
      return [s = &service, member](Request&& r, const Respond& to) {
        (s->*member)(std::move(r), to);
      };
    }
  };
  return {.method = method,
          .pattern = std::string("/api/v1/") + path,
          .body = body,
          .handler = std::visit(Bind{service}, handler),
          .needs_key = needs_key,
          .size = size,
          .scope = scope,
          .effect = effect};
}

std::span<const Service::Operation> Service::operations() {
  using enum BodyKind;
  using enum Scope;
  using enum Effect;
  using S = Service;
  static constexpr Operation kOperations[] = {
      {"GET", "healthz", &S::health, kNone, kRead, kReads, BodySize::kSmall, /*needs_key=*/false},
      {"GET", "readyz", &S::ready, kNone, kRead, kReads, BodySize::kSmall, /*needs_key=*/false},
      {"GET", "get_server_capabilities", &S::capabilities, kNone, kRead, kReads},
      {"GET", "samplers/{}", &S::get_sampler, kNone, kRead, kReads},
      {"GET", "usage", &S::usage, kNone, kRead, kReads},
      {"POST", "client/config", &S::client_config, kJson, kRead, kUpkeep},
      {"POST", "client/dynamic_config", &S::dynamic_config, kNone, kRead, kUpkeep},
      {"POST", "telemetry", &S::telemetry, kNone, kRead, kUpkeep},
      {"POST", "create_session", &S::create_session, kJson, kRead},
      {"POST", "session_heartbeat", &S::heartbeat, kJson, kRead, kUpkeep},
      {"POST", "sessions/{}/finish", &S::finish_session, kJson, kRead},
      {"POST", "get_info", &S::get_info, kJson, kRead, kReads},
      {"POST", "weights_info", &S::weights_info, kJson, kRead, kReads},
      {"POST", "retrieve_future", &S::retrieve_future, kJson, kRead, kUpkeep},
      {"POST", "cancel_future", &S::cancel_future, kJson, kSample},
      {"POST", "requests/{}/cancel", &S::cancel_request},
      {"POST", "create_model", &S::create_model},
      {"POST", "unload_model", &S::unload_model},
      {"POST", "optim_step", &S::optim_step},
      {"POST", "load_weights", &S::load_weights},
      {"POST", "forward_backward", &S::forward_backward, kJsonOrProto, kAll, kChanges,
       BodySize::kPass},
      {"POST", "forward", &S::forward, kJson, kAll, kChanges, BodySize::kPass},
      {"POST", "save_weights", &S::save_weights},
      {"POST", "save_weights_for_sampler", &S::save_weights_for_sampler},
      {"POST", "save_weights_external", &S::save_weights_external},
      {"POST", "create_sampling_session", &S::create_sampling_session, kJson, kSample},
      {"POST", "asample", &S::asample, kJson, kSample, kChanges, BodySize::kSample},
  };
  return kOperations;
}

void Service::add_routes(Router& router) {
  for (const Operation& operation : operations()) router.add(operation.route(*this));
}

Response Service::health(const Request&) {
  return json_response(200, JsonObject{{"status", "ok"}}.text());
}

Response Service::dynamic_config(const Request&) {
  return json_response(
      200, JsonObject{{"refresh_interval_sec", 300}, {"sample_cancel_enabled", true}}.text());
}

Response Service::telemetry(const Request&) {
  return json_response(200, JsonObject{{"status", "accepted"}}.text());
}

}  // namespace strata::server
