// SPDX-License-Identifier: Apache-2.0
// POST create_model: {session_id, model_seq_id, base_model, lora_config, user_metadata}: a fresh
// adapter that trains. Its number is the client's: sent again, it is the same model.
#include <fmt/format.h>

#include <bit>
#include <utility>

#include "base/crypto.h"
#include "server/tinker/operations/base_model.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/operations/start_model.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

int64_t read_rank(const text::Fields& config, int64_t max_rank) {
  const int64_t rank = config.integer("rank", INT64_MIN, INT64_MAX);
  if (rank < 1 || rank > max_rank || !std::has_single_bit(static_cast<uint64_t>(rank))) {
    config.fail("rank", fmt::format("got {}, wanted a power of two from 1 to {} (--max-rank)", rank,
                                    max_rank));
  }
  return rank;
}

api::LoraConfig read_lora(const text::Fields& body, int64_t max_rank) {
  if (!body.has("lora_config")) {
    body.fail("lora_config", "this server trains LoRA adapters: a rank is required");
  }
  const text::Fields config = body.object("lora_config");
  api::LoraConfig lora;
  lora.rank = read_rank(config, max_rank);
  const std::optional<uint64_t> seed = config.maybe_int64_bits("seed");
  lora.seed = seed ? *seed : random_seed();
  lora.train_attn = config.boolean_or("train_attn", true);
  lora.train_mlp = config.boolean_or("train_mlp", true);
  lora.train_unembed = config.boolean_or("train_unembed", true);
  if (!lora.train_attn && !lora.train_mlp && !lora.train_unembed) {
    config.fail("train_attn", "one of train_attn, train_mlp and train_unembed must be true");
  }
  return lora;
}

Response create_model(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "create_model");
  const text::Fields body = json.root();
  const std::string session = read_live_session(service, request, body);
  const std::string base_name = body.string("base_model");
  const BaseName& base = require_trainable(service.parts().names, body, base_name);
  const api::LoraConfig lora = read_lora(body, service.options().max_rank);
  return start_model(service, request, body,
                     {.type = "create_model",
                      .session = session,
                      .base = base,
                      .base_name = base_name,
                      .create = {.lora = lora}});
}

}  // namespace

constinit const Operation kCreateModel = {.path = "create_model", .run = create_model};

}  // namespace strata::server
