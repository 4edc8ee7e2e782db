// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/operations/data_call.h"

#include <fmt/format.h>

#include <memory>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "server/tinker/protocol/results.h"
#include "server/tinker/protocol/stability_record.h"

namespace strata::server {
namespace {

// Read on one thread, then submitted on another.
struct DataCall {
  Request request;
  Respond respond;
  DataForm form;
  std::string model_id = {};
  int64_t seq_id = 0;
  uint64_t fingerprint = 0;
  api::ForwardBackward op = {};
  std::optional<std::string> fault = std::nullopt;  // of the data
};

struct DataDone : Completion {
  explicit DataDone(DataForm of) : form(of) {}

  Response finish(const api::Outcome& outcome) override {
    const auto& result = std::get<api::ForwardBackwardResult>(outcome);
    return form == DataForm::kBinary ? forward_backward_response(result)
                                     : negotiated_forward_backward_response(result);
  }

  const DataForm form;
};

// The records of the session that a model is of, if that is the tenant's. Whether it is alive is
// asked when it is submitted.
struct FindRecordOf {
  StateStore& store;
  const std::string session, tenant;
  std::optional<bool> is_own = std::nullopt;

  [[nodiscard]] bool is_session_of_tenant() const {
    const std::optional<SessionRow> row = store.find_session(session);
    return row && row->tenant == tenant;
  }
  std::optional<SampleRecord> operator()(const std::string& sequence) {
    if (!is_own) is_own = is_session_of_tenant();
    if (!*is_own) return std::nullopt;
    const auto found = store.find_stability(session, sequence, wall_seconds());
    if (!found) return std::nullopt;
    return found->prompt ? unpack_sequence(*found->prompt, found->record)
                         : unpack_record(found->record);
  }
};

// Any thread. Throws Error for what cannot be parsed; other faults are the data's.
void read_data(const ServiceParts& parts, const DataLimits& limits, DataCall& call) {
  ForwardBackwardBody body(call.request.body, call.form, call.request.charge.get());
  call.model_id = body.model_id();
  call.seq_id = body.seq_id();
  try {
    call.op = body.build(limits, FindRecordOf{parts.store, ModelTable::session_of(call.model_id),
                                              call.request.tenant});
    call.fingerprint = fingerprint_of(call.op);
  } catch (const Error& error) {
    if (dynamic_cast<const StoreError*>(&error) != nullptr) throw;  // no fault of the data
    call.fault = error.what();
    call.fingerprint = Hash::of(call.request.body);
  }
}

// What is wrong with the data, as the server and the model are.
std::optional<std::string> find_data_fault(const DataCall& call, const ServiceOptions& options,
                                           const api::BaseInfo& base) {
  if (call.fault) return call.fault;
  if (call.op.loss.name == api::LossName::kStableReinforce && !options.stable_reinforce) {
    return "forward_backward: loss_fn 'stable_reinforce' is switched off on this server "
           "(--stable-reinforce=off)";
  }
  return find_length_fault(call.op, base);
}

void log_own_formula_once(const std::string& id, LiveModel& model) {
  if (std::exchange(model.told_formula, true)) return;
  log(LogLevel::kWarning, fmt::format("model {}: stable_reinforce runs with Strata's own formula; "
                                      "the service's is not published",
                                      id));
}

Response submit_data(Service& service, DataCall& call) {
  const std::string& tenant = call.request.tenant;
  const std::string& id = call.model_id;
  LiveModel& model = service.require_live_model(call.request, id);
  if (call.seq_id < 1) {
    return error_response(
        400, fmt::format("forward_backward: seq_id: got {}, wanted 1 or more", call.seq_id));
  }
  if (const auto fault = find_data_fault(call, service.options(), service.info(model.base)))
    return service.reject_seq_id(tenant, id, call.seq_id, call.fingerprint, *fault);
  api::Command command = service.new_training_command(call.request, model, id, call.seq_id);
  command.fingerprint = call.fingerprint;
  const bool is_ours = call.op.loss.name == api::LossName::kStableReinforce;
  command.op = std::move(call.op);
  if (is_ours) log_own_formula_once(id, model);
  service.parts().store.touch_run(id, wall_seconds());
  return service.submit(std::move(command), {.completion = std::make_shared<DataDone>(call.form),
                                             .key_id = call.request.key_id});
}

// Each record of a sequence is asked of the database, which may be far away. In JSON any letter may
// be written as an escape. Of a body that is read at once: it looks at all of it.
bool may_name_records(std::string_view body, DataForm form) {
  return body.find("stable_reinforce") != std::string_view::npos ||
         (form != DataForm::kBinary && body.find('\\') != std::string_view::npos);
}

}  // namespace

void handle_data_call(Service& service, Request&& request, const Respond& respond, DataForm form) {
  const int64_t most = service.options().max_data_values;
  const auto call = std::make_shared<DataCall>(DataCall{std::move(request), respond, form});
  const auto read = [&parts = service.parts(), call, most] {
    read_data(parts, {.elements = most, .record_bytes = most}, *call);
    call->request.free_body();
  };
  const std::string& body = call->request.body;
  const bool is_long = body.size() > Service::kReadAtOnce || may_name_records(body, form);
  service.run_request_work(respond, call->request.tenant, is_long, read,
                           [&service, call] { call->respond(submit_data(service, *call)); });
}

}  // namespace strata::server
