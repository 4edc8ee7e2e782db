// SPDX-License-Identifier: Apache-2.0
// POST load_weights: {path, optimizer}: the weights of a checkpoint. With {model_id, seq_id} into
// that model, in its order; with {session_id, model_seq_id, ...} as create_model has them into a
// new one.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "server/http/message.h"
#include "server/tinker/operations/base_model.h"
#include "server/tinker/operations/numbered.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/operations/start_model.h"
#include "server/tinker/protocol/common_fields.h"

namespace strata::server {
namespace {

void check_kind(const text::Fields& body, const TinkerPath& path) {
  if (path.kind == CheckpointKind::kWeights) return;
  body.fail("path", fmt::format("'{}' is not a training checkpoint (weights)", path.text()));
}

// A load of what is not there is the user's fault like any other of its faults: 400.
CheckpointRow find_checkpoint_to_load(Service& service, const Request& request,
                                      const TinkerPath& path) {
  try {
    return service.parts().registry.require_checkpoint(path, request.tenant, /*may_be_public=*/true,
                                                       wall_seconds());
  } catch (const Error& error) {
    if (error.code != ErrorCode::kNotFound) throw;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("load_weights: path: {}", error.what()));
  }
}

void check_base_of_checkpoint(const BaseNames& names, const text::Fields& body,
                              const CheckpointRow& row, const BaseName& base,
                              const std::string& base_name) {
  const BaseName* of_row = names.find(row.base_model);
  if (of_row != nullptr && of_row->model == base.model) return;
  body.fail("base_model", fmt::format("'{}' is not the checkpoint's base model '{}'",
                                      base_name.substr(0, 200), row.base_model));
}

Response create_model_from_checkpoint(Service& service, const Request& request,
                                      const text::Fields& body) {
  const BaseNames& names = service.parts().names;
  CheckpointRegistry& registry = service.parts().registry;
  refuse_token(body);
  const std::string session = read_live_session(service, request, body);
  const TinkerPath path = parse_tinker_path(body.string("path"));
  check_kind(body, path);
  const CheckpointRow row = find_checkpoint_to_load(service, request, path);
  const std::string base_name = body.string_or("base_model", row.base_model);
  const BaseName& base = require_trainable(names, body, base_name);
  check_base_of_checkpoint(names, body, row, base, base_name);
  const bool optimizer = body.boolean_or("optimizer", false);
  return start_model(service, request, body,
                     {.type = "load_weights",
                      .session = session,
                      .base = base,
                      .base_name = base_name,
                      .create = {row.lora, registry.folder(row), optimizer},
                      .lease = registry.lease(row.id)});
}

struct StateLoaded : Completion {
  StateLoaded(TinkerPath of, std::shared_ptr<void> checkpoint)
      : path(std::move(of)), lease(std::move(checkpoint)) {}

  Response finish(const api::Outcome&) override {
    return json_response(200, JsonObject{{"type", "load_weights"}, {"path", path.text()}}.text());
  }

  const TinkerPath path;
  const std::shared_ptr<void> lease;
};

void check_same_base(const BaseNames& names, const NumberedCall& call, const TinkerPath& path,
                     const CheckpointRow& row) {
  const LiveModel& model = call.model;
  const BaseName* base = names.find(row.base_model);
  if (base == nullptr || api::BaseId{base->model} != model.base) {
    call.body.fail("path",
                   fmt::format("'{}' is of base model '{}', model {} is of '{}'", path.text(),
                               row.base_model, call.model_id, model.base_name));
  }
}

void check_same_lora(const NumberedCall& call, const TinkerPath& path, const CheckpointRow& row) {
  const LiveModel& model = call.model;
  if (row.lora.rank != model.lora.rank || row.lora.train_attn != model.lora.train_attn ||
      row.lora.train_mlp != model.lora.train_mlp ||
      row.lora.train_unembed != model.lora.train_unembed) {
    call.body.fail("path", fmt::format("'{}' has rank {} or trained modules unlike those of model "
                                       "{} (rank {})",
                                       path.text(), row.lora.rank, call.model_id, model.lora.rank));
  }
}

// The checkpoint, which is of a model like this one; throws where it is not, or not there.
CheckpointRow require_matching_checkpoint(Service& service, const NumberedCall& call,
                                          const TinkerPath& path) {
  check_kind(call.body, path);
  CheckpointRow row =
      service.parts().registry.require_checkpoint(path, call.request.tenant,
                                                  /*may_be_public=*/true, wall_seconds());
  check_same_base(service.parts().names, call, path, row);
  check_same_lora(call, path, row);
  return row;
}

Response load_into_model(Service& service, const NumberedCall& call) {
  CheckpointRegistry& registry = service.parts().registry;
  refuse_token(call.body);
  const TinkerPath path = parse_tinker_path(call.body.string("path"));
  const bool optimizer = call.body.boolean_or("optimizer", false);
  CheckpointRow row;
  try {
    row = require_matching_checkpoint(service, call, path);
  } catch (const Error& error) {
    if (dynamic_cast<const StoreError*>(&error) != nullptr) throw;  // no fault of the path
    return reject_seq_id(service, call, error.what());
  }
  api::Command command = new_training_command(service, call);
  command.op = api::LoadState{registry.folder(row), optimizer};
  return service.submit(std::move(command), {.completion = std::make_shared<StateLoaded>(
                                                 path, registry.lease(row.id))});
}

Response load_weights(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "load_weights");
  if (!json.root().has("model_id"))
    return create_model_from_checkpoint(service, request, json.root());
  return handle_numbered_call(service, request, json.root(), [&](const NumberedCall& call) {
    return load_into_model(service, call);
  });
}

}  // namespace

constinit const Operation kLoadWeights = {
    .path = "load_weights", .run = load_weights, .size = BodySize::kTiny};

}  // namespace strata::server
