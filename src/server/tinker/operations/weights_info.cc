// SPDX-License-Identifier: Apache-2.0
// POST weights_info: {tinker_path}: what a checkpoint is of.
#include "base/clock.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/protocol/common_fields.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

Response get_weights_info(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "weights_info");
  const text::Fields body = json.root();
  refuse_token(body);
  const TinkerPath path = parse_tinker_path(body.string("tinker_path"));
  const CheckpointRow row = service.parts().registry.require_checkpoint(
      path, request.tenant, /*may_be_public=*/true, wall_seconds());
  return json_response(200, JsonObject{{"type", "weights_info"},
                                       {"base_model", row.base_model},
                                       {"is_lora", true},
                                       {"lora_rank", row.lora.rank},
                                       {"train_unembed", row.lora.train_unembed},
                                       {"train_mlp", row.lora.train_mlp},
                                       {"train_attn", row.lora.train_attn},
                                       {"optimizer_config", JsonObject{{"type", "adamw"}}}}
                                .text());
}

}  // namespace

constinit const Operation kWeightsInfo = {.path = "weights_info",
                                          .run = get_weights_info,
                                          .scope = Scope::kRead,
                                          .effect = Effect::kReads,
                                          .size = BodySize::kTiny};

}  // namespace strata::server
