// SPDX-License-Identifier: Apache-2.0
// POST create_sampling_session: {session_id, sampling_session_seq_id} and {model_path} or
// {base_model}: a name for weights to sample from. Its number is the client's: sent again, it is
// the same.
#include <fmt/format.h>

#include "base/clock.h"
#include "server/http/message.h"
#include "server/tinker/operations/base_model.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/protocol/common_fields.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response sampler_reply(const std::string& id) {
  return json_response(
      200, JsonObject{{"type", "create_sampling_session"}, {"sampling_session_id", id}}.text());
}

void check_base_of_checkpoint(const BaseNames& names, const text::Fields& body,
                              const TinkerPath& path, const std::string& base_model) {
  const BaseName& of_path = require_base(names, body, base_model);
  if (body.has("base_model") &&
      require_trainable(names, body, body.string("base_model")).model != of_path.model) {
    body.fail("base_model", fmt::format("'{}' is of base model '{}'", path.text(), base_model));
  }
}

void read_checkpoint_source(const ServiceParts& parts, const text::Fields& body, SamplerRow& row) {
  const TinkerPath path = parse_tinker_path(*row.model_path);
  if (path.kind == CheckpointKind::kExternal) {
    body.fail("model_path",
              fmt::format("'{}' is an export; sampling wants sampler_weights", path.text()));
  }
  const CheckpointRow checkpoint =
      parts.registry.require_checkpoint(path, row.tenant, /*may_be_public=*/true, row.created_at);
  row.checkpoint_id = checkpoint.id;
  row.base_model = checkpoint.base_model;
  check_base_of_checkpoint(parts.names, body, path, checkpoint.base_model);
}

// What it samples from: a checkpoint, or a model that is served.
void read_weights_source(const ServiceParts& parts, const text::Fields& body, SamplerRow& row) {
  row.model_path = body.maybe_string("model_path");
  if (row.model_path) return read_checkpoint_source(parts, body, row);
  row.base_model = body.string("base_model");
  require_base(parts.names, body, row.base_model);
}

// A new one, as the store keeps it.
SamplerRow read_sampler_row(const ServiceParts& parts, const text::Fields& body,
                            const std::string& tenant, const std::string& session, int64_t number) {
  SamplerRow row;
  row.id = SamplerTable::id_of(session, number);
  row.session_id = session;
  row.sampling_seq = number;
  row.tenant = tenant;
  row.created_at = wall_seconds();
  read_weights_source(parts, body, row);
  return row;
}

// Whether it came before; one that made way, or is of before a restart, is alive again then.
bool revive_known_sampler(Service& service, const Request& request, const std::string& id) {
  if (service.samplers().contains(id)) return true;
  if (!service.parts().store.find_sampler(id)) return false;
  service.require_sampler(request, id);
  return true;
}

std::optional<Response> refuse_full_session(Service& service, const std::string& session) {
  const int64_t in_use = service.samplers().count_of(session);
  if (in_use < service.options().max_samplers) return std::nullopt;
  return error_response(
      400, fmt::format("create_sampling_session: session {} has {} sampling sessions "
                       "(--max-samplers-per-session); use those again, or a new session",
                       session, in_use));
}

Response create_sampling_session(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "create_sampling_session");
  const text::Fields body = json.root();
  refuse_token(body);
  const std::string session = body.string("session_id");
  service.require_session(request, session);
  const int64_t number = body.integer("sampling_session_seq_id", 0, INT64_MAX);
  const std::string id = SamplerTable::id_of(session, number);
  request.note(id);
  if (revive_known_sampler(service, request, id)) return sampler_reply(id);
  if (auto refused = refuse_full_session(service, session)) return std::move(*refused);
  if (auto refused = service.refuse_over_sampler_limit(request.tenant)) return std::move(*refused);
  const SamplerRow row = read_sampler_row(service.parts(), body, request.tenant, session, number);
  service.check_may_sample(request.tenant, *service.parts().names.find(row.base_model));
  const SamplerRow kept = service.parts().store.ensure_sampler(row);
  service.samplers().count_stored(session);
  service.add_live_sampler(kept.id, service.make_sampler(kept, request.tenant));
  return sampler_reply(kept.id);
}

}  // namespace

constinit const Operation kCreateSamplingSession = {
    .path = "create_sampling_session", .run = create_sampling_session, .scope = Scope::kSample};

}  // namespace strata::server
