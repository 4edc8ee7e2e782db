// SPDX-License-Identifier: Apache-2.0
#include "server/operations/pass_call.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "server/protocol/results.h"
#include "server/protocol/stability_record.h"

namespace strata::server {
namespace {

// Read on one thread, then submitted on another.
struct Pass {
  Request request;
  Respond respond;
  PassForm form;
  std::string model_id = {};
  int64_t seq_id = 0;
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

// The records of the session that a model is of, if that is the tenant's. Whether it is alive is
// asked when the pass is submitted.
struct FindRecordOf {
  StateStore& store;
  const std::string session, tenant;
  std::optional<bool> is_own = std::nullopt;

  std::optional<SampleRecord> operator()(const std::string& sequence) {
    if (!is_own) {
      const std::optional<SessionRow> row = store.find_session(session);
      is_own = row && row->tenant == tenant;
    }
    if (!*is_own) return std::nullopt;
    const auto found = store.get_stability(session, sequence, wall_seconds());
    if (!found) return std::nullopt;
    return found->prompt ? unpack_sequence(*found->prompt, found->record)
                         : unpack_record(found->record);
  }
};

// Any thread. Throws Error for what cannot be parsed; other faults are the data's.
void read_pass(const ServiceParts& parts, const PassLimits& limits, Pass& pass) {
  ForwardBackwardBody body(pass.request.body, pass.form, pass.request.body_share.get());
  pass.model_id = body.model_id();
  pass.seq_id = body.seq_id();
  try {
    pass.op = body.build(limits, FindRecordOf{parts.store, ModelTable::session_of(pass.model_id),
                                              pass.request.tenant});
    pass.fingerprint = fingerprint_of(pass.op);
  } catch (const Error& error) {
    pass.fault = error.what();
    pass.fingerprint = fingerprint_of(pass.request.body);
  }
}

// What is wrong with the data, as the server and the model are.
std::optional<std::string> fault_of(const Pass& pass, const ServiceOptions& options,
                                    const api::BaseInfo& base) {
  if (pass.fault) return pass.fault;
  if (pass.op.loss.name == api::LossName::kStableReinforce && !options.stable_reinforce) {
    return "forward_backward: loss_fn 'stable_reinforce' is switched off on this server "
           "(--stable-reinforce=off)";
  }
  return fault_of_lengths(pass.op, base);
}

Response submit_pass(Service& service, Pass& pass) {
  const std::string& tenant = pass.request.tenant;
  const std::string& id = pass.model_id;
  LiveModel& model = service.live_model(pass.request, id);
  if (pass.seq_id < 1) {
    return error_response(
        400, fmt::format("forward_backward: seq_id: got {}, wanted 1 or more", pass.seq_id));
  }
  if (const auto fault = fault_of(pass, service.options(), service.info(model.base)))
    return service.refuse_later(tenant, id, pass.seq_id, pass.fingerprint, *fault);
  api::Command command = service.training_command(pass.request, model, id, pass.seq_id);
  command.fingerprint = pass.fingerprint;
  const bool is_ours = pass.op.loss.name == api::LossName::kStableReinforce;
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

}  // namespace

void take_pass(Service& service, Request&& request, const Respond& respond, PassForm form) {
  const int64_t most = service.options().max_pass_values;
  const auto pass = std::make_shared<Pass>(Pass{std::move(request), respond, form});
  const auto read = [&parts = service.parts(), pass, most] {
    read_pass(parts, {.elements = most, .record_bytes = most}, *pass);
    pass->request.free_body();
  };
  service.in_parts(respond, pass->request.tenant, pass->request.body.size(), read,
                   [&service, pass] { pass->respond(submit_pass(service, *pass)); });
}

}  // namespace strata::server
