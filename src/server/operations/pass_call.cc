// SPDX-License-Identifier: Apache-2.0
#include "server/operations/pass_call.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "server/operations/numbered.h"
#include "server/protocol/results.h"
#include "server/protocol/stability_record.h"

namespace strata::server {
namespace {

// Between its steps nothing but the next one touches it.
struct Pass {
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

struct PassDone : Completion {
  explicit PassDone(PassForm of) : form(of) {}

  Response finish(const api::Outcome& outcome) override {
    const auto& result = std::get<api::ForwardBackwardResult>(outcome);
    return form == PassForm::kBinary ? forward_backward_response(result)
                                     : forward_backward_as_accepted(result);
  }

  const PassForm form;
};

std::optional<SampleRecord> find_record(StateStore& store, const std::string& session,
                                        const std::string& sequence) {
  const auto found = store.get_stability(session, sequence, wall_seconds());
  if (!found) return std::nullopt;
  return found->prompt ? unpack_sequence(*found->prompt, found->record)
                       : unpack_record(found->record);
}

Response submit_pass(Service& service, Pass& pass) {
  const std::string& tenant = pass.request.tenant;
  const std::string& id = pass.model_id;
  LiveModel& model = service.live_model(pass.request, id);
  const bool is_ours = pass.op.loss.name == api::LossName::kStableReinforce;
  if (!pass.fault && is_ours && !service.options().stable_reinforce) {
    pass.fault =
        "forward_backward: loss_fn 'stable_reinforce' is switched off on this server "
        "(--stable-reinforce=off)";
  }
  if (pass.fault)
    return service.refuse_later(tenant, id, pass.seq_id, pass.fingerprint, *pass.fault);
  api::Command command = training_command(service, pass.request, model, id, pass.seq_id);
  command.fingerprint = pass.fingerprint;
  command.op = std::move(pass.op);
  if (is_ours && !model.told_formula) {
    model.told_formula = true;
    log(LogLevel::kWarning,
        fmt::format("model {}: stable_reinforce runs with Strata's own formula; "
                    "the service's is not published",
                    id));
  }
  service.parts().store.touch_run(id, wall_seconds());
  return service.submit(std::move(command), {.completion = std::make_shared<PassDone>(pass.form),
                                             .key_id = pass.request.key_id});
}

void build_pass(Service& service, const std::shared_ptr<Pass>& pass) {
  const LiveModel& model = service.live_model(pass->request, pass->model_id);
  if (pass->seq_id < 1) {
    return pass->respond(error_response(
        400, fmt::format("forward_backward: seq_id: got {}, wanted 1 or more", pass->seq_id)));
  }
  pass->session = model.session;
  pass->limits = {.tokens = service.info(model.base).max_context,
                  .trained = service.info(model.base).longest_datum,
                  .elements = service.options().max_pass_values,
                  .record_bytes = service.options().max_pass_values};
  const auto build = [&service, pass] {
    try {
      pass->op = pass->body->build(pass->limits, [&](const std::string& sequence) {
        return find_record(service.parts().store, pass->session, sequence);
      });
      pass->fingerprint = fingerprint_of(pass->op);
    } catch (const Error& error) {
      pass->fault = error.what();
      pass->fingerprint = fingerprint_of(pass->request.body);
    }
    pass->body.reset();
    pass->request.free_body();
  };
  service.in_parts(pass->respond, pass->request.tenant, pass->num_bytes, build,
                   [&service, pass] { pass->respond(submit_pass(service, *pass)); });
}

}  // namespace

void take_pass(Service& service, Request&& request, const Respond& respond, PassForm form) {
  auto pass = std::make_shared<Pass>(Pass{std::move(request), respond, form});
  service.in_parts(
      respond, pass->request.tenant, pass->num_bytes,
      [pass] {
        pass->body = std::make_unique<ForwardBackwardBody>(pass->request.body, pass->form,
                                                           pass->request.body_share.get());
        pass->model_id = std::string(pass->body->model_id());
        pass->seq_id = pass->body->seq_id();
      },
      [&service, pass] { build_pass(service, pass); });
}

}  // namespace strata::server
