// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/start_model.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "server/http/message.h"
#include "server/tinker/protocol/common_fields.h"

namespace strata::server {
namespace {

void check_optimizer(const text::Fields& body) {
  if (!body.has("optimizer_config")) return;
  const std::string type = body.object("optimizer_config").string_or("type", "adamw");
  if (type != "adamw") {
    body.fail("optimizer_config", fmt::format("type '{}' is not supported; this server has adamw",
                                              type.substr(0, 100)));
  }
}

// How the page calls a run: `name` of its user_metadata.
std::string name_of_run(const text::Fields& body) {
  if (!body.has("user_metadata")) return "";
  const text::Fields metadata = body.object("user_metadata");
  return metadata.is_string("name") ? metadata.string("name") : "";
}

struct ModelMade : Completion {
  ModelMade(Service& of, std::string model, const char* reply_type,
            std::shared_ptr<void> checkpoint)
      : service(of), id(std::move(model)), type(reply_type), lease(std::move(checkpoint)) {}

  Response finish(const api::Outcome&) override {
    return json_response(200, JsonObject{{"type", type}, {"model_id", id}}.text());
  }
  void undo() override {
    if (!is_alive) return;
    service.retire_model(id);
    service.parts().store.forget_run(id);
  }

  Service& service;
  const std::string id;
  const char* const type;  // of the reply
  const std::shared_ptr<void> lease;
  bool is_alive = false;  // it has a row, which was made for this command
};

// What the store keeps of it, for a restart; `name` is how the page calls it.
RunRow make_run_row(Service& service, const Request& request, const text::Fields& body,
                    const ModelStart& start, int64_t number, std::string& name) {
  RunRow row;
  row.id = ModelTable::id_of(start.session, number);
  row.tenant = request.tenant;
  row.session_id = start.session;
  row.model_seq = number;
  row.created_at = row.last_request_at = wall_seconds();
  row.base_model = start.base_name;
  row.lora = start.create.lora;
  row.user_metadata = read_metadata(body);
  name = name_of_run(body);
  if (const auto of = service.parts().store.find_session(start.session)) {
    row.project_id = of->project_id;
    if (name.empty()) name = of->display_name.value_or("");
  }
  return row;
}

// The number is that of a run which is over, or of a copy.
[[noreturn]] void refuse_used_number(Service& service, const Request& request, const RunRow& row,
                                     const char* type) {
  const std::optional<RunRow> known = service.parts().store.find_run(row.id);
  if (!known || known->state != RunState::kCopy)
    service.require_live_model(request, row.id);  // throws
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: model_seq_id: {} of session {} is in use, by a copy "
                          "(copy_weights); use another number",
                          type, row.model_seq.value_or(0), row.session_id.value_or("")));
}

api::Command take_create_command(Service& service, const Request& request, ModelStart& start,
                                 const std::string& id) {
  const auto base = api::BaseId{start.base.model};
  api::Command command =
      service.new_command(request.tenant, start.session, base, FutureKind::kTraining);
  command.model = {id};
  command.fingerprint = Hash::of(request.body);
  command.op = std::move(start.create);
  return command;
}

// Adds the model to those that are alive, and its run to what the page watches.
void register_model(Service& service, const RunRow& row, const std::string& session,
                    api::BaseId base, std::string name) {
  service.models().add(row.id, {row.tenant, session, row.base_model, base, row.lora, false});
  service.parts().watch.note_run_started(row.id, {.tenant = row.tenant,
                                                  .base_name = row.base_model,
                                                  .name = std::move(name),
                                                  .rank = row.lora.rank,
                                                  .begin = row.created_at});
}

}  // namespace

std::string read_live_session(Service& service, const Request& request, const text::Fields& body) {
  std::string session = body.string("session_id");
  service.require_session(request, session);
  check_optimizer(body);
  return session;
}

Response start_model(Service& service, const Request& request, const text::Fields& body,
                     ModelStart start) {
  StateStore& store = service.parts().store;
  const int64_t number = body.integer("model_seq_id", 0, INT64_MAX);
  const std::string id = ModelTable::id_of(start.session, number);
  request.note(id);
  const bool is_new = !service.models().contains(id);
  std::string name;
  const RunRow row = make_run_row(service, request, body, start, number, name);
  api::Command command = take_create_command(service, request, start, id);
  // First what a restart must know, then the model: what the store refuses takes no slot.
  if (is_new && !store.add_run(row)) refuse_used_number(service, request, row, start.type);
  const auto made = std::make_shared<ModelMade>(service, id, start.type, std::move(start.lease));
  Response response = service.submit(std::move(command), {.completion = made});
  if (is_new && response.status != 200) service.run_guarded("undo", [&] { store.forget_run(id); });
  if (response.status == 409) {  // which a client would repeat for five minutes
    return error_response(
        400, fmt::format("{}: model_seq_id: {} was used for another request", start.type, number));
  }
  if (response.status != 200 || !is_new) return response;
  register_model(service, row, start.session, api::BaseId{start.base.model}, std::move(name));
  made->is_alive = true;
  return response;
}

}  // namespace strata::server
