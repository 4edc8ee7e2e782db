// SPDX-License-Identifier: Apache-2.0
// GET samplers/{}: what a sampling session samples from.
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"

namespace strata::server {
namespace {

Response get_sampler(Service& service, const Request& request) {
  const std::string& id = request.parts.at(0);
  const SamplerTable::Row sampler = service.require_sampler(request, id);
  JsonObject reply = {{"sampler_id", id}, {"base_model", sampler->base_name}};
  if (sampler->model_path) reply.add("model_path", *sampler->model_path);
  return json_response(200, reply.text());
}

}  // namespace

constinit const Operation kGetSampler = {.method = "GET",
                                         .path = "samplers/{}",
                                         .run = get_sampler,
                                         .body = BodyKind::kNone,
                                         .scope = Scope::kRead,
                                         .effect = Effect::kReads};

}  // namespace strata::server
