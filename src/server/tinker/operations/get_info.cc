// SPDX-License-Identifier: Apache-2.0
// POST get_info: {model_id}: what a model is.
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response get_info(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "get_info");
  const std::string id = json.root().string("model_id");
  const LiveModel& model = service.require_live_model(request, id);
  const BaseName* base = service.parts().names.find(model.base_name);
  return json_response(
      200, JsonObject{{"type", "get_info"},
                      {"model_id", id},
                      {"model_data", JsonObject{{"arch", service.info(model.base).architecture},
                                                {"model_name", model.base_name},
                                                {"tokenizer_id", base->tokenizer_id}}},
                      {"is_lora", true},
                      {"lora_rank", model.lora.rank},
                      {"model_name", model.base_name},
                      {"optimizer_config", JsonObject{{"type", "adamw"}}}}
               .text());
}

}  // namespace

constinit const Operation kGetInfo = {.path = "get_info",
                                      .run = get_info,
                                      .scope = Scope::kRead,
                                      .effect = Effect::kReads,
                                      .size = BodySize::kTiny};

}  // namespace strata::server
