// SPDX-License-Identifier: Apache-2.0
// POST unload_model: {model_id}: its memory goes, once what was accepted of it has run.
#include <memory>
#include <string>
#include <utility>

#include "base/hash.h"
#include "server/http/message.h"
#include "server/tinker/operations/operations.h"
#include "text/json_body.h"

namespace strata::server {
namespace {

struct ModelUnloaded : Completion {
  explicit ModelUnloaded(std::string model) : id(std::move(model)) {}
  Response finish(const api::Outcome&) override {
    return json_response(200, JsonObject{{"type", "unload_model"}, {"model_id", id}}.text());
  }
  const std::string id;
};

Response unload_model(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "unload_model");
  const std::string id = json.root().string("model_id");
  const LiveModel& model = service.require_live_model(request, id);
  api::Command command = service.new_training_command(request, model, id, /*seq_id=*/0);
  command.fingerprint = Hash::of(request.body);
  command.op = api::UnloadModel{};
  Response response =
      service.submit(std::move(command), {.completion = std::make_shared<ModelUnloaded>(id)});
  if (response.status == 200) service.retire_model(id);
  return response;
}

}  // namespace

constinit const Operation kUnloadModel = {
    .path = "unload_model", .run = unload_model, .size = BodySize::kTiny};

}  // namespace strata::server
