// SPDX-License-Identifier: Apache-2.0
// Passes: forward_backward and forward. Faults of the data come through the future. A large body is
// read on other threads, in two steps, since what its data may be is known with its model.
#include <fmt/format.h>

#include <utility>

#include "base/log.h"
#include "server/protocol/results.h"
#include "server/protocol/stability_record.h"
#include "server/service/service.h"

namespace strata::server {
// Between its steps nothing but the next one touches it.
struct Service::Pass {
  Request request;
  Respond respond;
  PassForm form;
  size_t num_bytes = request.body.size();
  std::string model_id = {};
  int64_t seq_id = 0;
  std::string session = {};
  PassLimits limits = {};
  std::unique_ptr<ForwardBackwardBody> body = nullptr;  // until it is built
  uint64_t fingerprint = 0;
  api::ForwardBackward op = {};
  std::optional<std::string> fault = std::nullopt;  // of the data
};

struct Service::PassDone : Completion {
  explicit PassDone(PassForm of) : form(of) {}

  Response finish(const api::Outcome& outcome) override {
    const auto& result = std::get<api::ForwardBackwardResult>(outcome);
    return form == PassForm::kBinary ? forward_backward_response(result)
                                     : forward_backward_as_accepted(result);
  }

  const PassForm form;
};

std::optional<SampleRecord> Service::find_record(const std::string& session,
                                                 const std::string& sequence) {
  const auto found = parts_.store.get_stability(session, sequence, wall_seconds());
  if (!found) return std::nullopt;
  return found->prompt ? unpack_sequence(*found->prompt, found->record)
                       : unpack_record(found->record);
}

void Service::forward_backward(Request&& request, const Respond& respond) {
  const bool is_binary = media_type(request.header("content-type")) == kProtobuf;
  take_pass(std::move(request), respond, is_binary ? PassForm::kBinary : PassForm::kJson);
}

void Service::forward(Request&& request, const Respond& respond) {
  take_pass(std::move(request), respond, PassForm::kJsonForward);
}

void Service::take_pass(Request&& request, const Respond& respond, PassForm form) {
  auto pass = std::make_shared<Pass>(Pass{std::move(request), respond, form});
  in_parts(
      respond, pass->request.tenant, pass->num_bytes,
      [pass] {
        pass->body = std::make_unique<ForwardBackwardBody>(pass->request.body, pass->form,
                                                           pass->request.body_share.get());
        pass->model_id = std::string(pass->body->model_id());
        pass->seq_id = pass->body->seq_id();
      },
      [this, pass] { build_pass(pass); });
}

void Service::build_pass(const std::shared_ptr<Pass>& pass) {
  const LiveModel& model = live_model(pass->request, pass->model_id);
  if (pass->seq_id < 1) {
    return pass->respond(error_response(
        400, fmt::format("forward_backward: seq_id: got {}, wanted 1 or more", pass->seq_id)));
  }
  pass->session = model.session;
  pass->limits = {.tokens = info(model.base).max_context,
                  .trained = info(model.base).longest_datum,
                  .elements = options_.max_pass_values,
                  .record_bytes = options_.max_pass_values};
  const auto build = [this, pass] {
    try {
      pass->op = pass->body->build(pass->limits, [&](const std::string& sequence) {
        return find_record(pass->session, sequence);
      });
      pass->fingerprint = fingerprint_of(pass->op);
    } catch (const Error& error) {
      pass->fault = error.what();
      pass->fingerprint = fingerprint_of(pass->request.body);
    }
    pass->body.reset();
    pass->request.free_body();
  };
  in_parts(pass->respond, pass->request.tenant, pass->num_bytes, build,
           [this, pass] { pass->respond(submit_pass(*pass)); });
}

Response Service::submit_pass(Pass& pass) {
  const std::string& tenant = pass.request.tenant;
  const std::string& id = pass.model_id;
  LiveModel& model = live_model(pass.request, id);
  const bool is_ours = pass.op.loss.name == api::LossName::kStableReinforce;
  if (!pass.fault && is_ours && !options_.stable_reinforce) {
    pass.fault =
        "forward_backward: loss_fn 'stable_reinforce' is switched off on this server "
        "(--stable-reinforce=off)";
  }
  if (pass.fault) return refuse_later(tenant, id, pass.seq_id, pass.fingerprint, *pass.fault);
  api::Command command = training_command(pass.request, model, id, pass.seq_id);
  command.fingerprint = pass.fingerprint;
  command.op = std::move(pass.op);
  if (is_ours && !model.told_formula) {
    model.told_formula = true;
    log(LogLevel::kWarning,
        fmt::format("model {}: stable_reinforce runs with Strata's own formula; "
                    "the service's is not published",
                    id));
  }
  parts_.store.touch_run(id, wall_seconds());
  return submit(
      tenant, std::move(command),
      {.completion = std::make_shared<PassDone>(pass.form), .key_id = pass.request.key_id});
}

}  // namespace strata::server
