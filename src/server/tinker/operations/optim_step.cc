// SPDX-License-Identifier: Apache-2.0
// POST optim_step: {model_id, seq_id, adam_params}: a step with the gradients so far, which are
// then 0.
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "server/tinker/operations/numbered.h"
#include "server/tinker/operations/operations.h"
#include "server/tinker/protocol/results.h"

namespace strata::server {
namespace {

double read_float32_or(const text::Fields& fields, const char* name, double otherwise) {
  if (fields.is_null(name)) fields.fail(name, "null is no number");
  const double value = fields.number_or(name, otherwise);
  const auto rounded = static_cast<float>(value);  // as it is computed with
  if (!std::isfinite(rounded) || (value != 0 && rounded == 0))
    fields.fail(name, fmt::format("got {}, which no 32-bit number is", value));
  return value;
}

double read_at_least_0(const text::Fields& fields, const char* name, double otherwise) {
  const double value = read_float32_or(fields, name, otherwise);
  if (value < 0) fields.fail(name, fmt::format("got {}, wanted 0 or more", value));
  return value;
}

double read_beta(const text::Fields& fields, const char* name, double otherwise) {
  const double value = read_float32_or(fields, name, otherwise);
  if (value < 0 || static_cast<float>(value) >= 1) {
    fields.fail(name, fmt::format("got {}, wanted 0 or more and below 1", value));
  }
  return value;
}

api::AdamW read_adam(const text::Fields& body) {
  if (body.has("optimizer_params")) {
    body.fail("optimizer_params", "is not supported: this server has Adam (adam_params)");
  }
  api::AdamW adam;
  if (!body.has("adam_params")) return adam;
  const text::Fields params = body.object("adam_params");
  adam.lr = read_at_least_0(params, "learning_rate", adam.lr);
  adam.beta1 = read_beta(params, "beta1", adam.beta1);
  adam.beta2 = read_beta(params, "beta2", adam.beta2);
  adam.eps = read_float32_or(params, "eps", adam.eps);
  if (adam.eps <= 0) params.fail("eps", fmt::format("got {}, wanted more than 0", adam.eps));
  adam.weight_decay = read_at_least_0(params, "weight_decay", adam.weight_decay);
  adam.grad_clip_norm = read_at_least_0(params, "grad_clip_norm", adam.grad_clip_norm);
  return adam;
}

struct Stepped : Completion {
  Response finish(const api::Outcome& outcome) override {
    return optim_response(std::get<api::StepResult>(outcome));
  }
};

Response optim_step(Service& service, const Request& request) {
  const text::JsonBody json(request.body, "optim_step");
  return handle_numbered_call(service, request, json.root(), [&](const NumberedCall& call) {
    api::Command command = new_training_command(service, call);
    command.op = api::OptimStep{read_adam(call.body)};
    service.parts().store.touch_run(call.model_id, wall_seconds());
    return service.submit(std::move(command), {.completion = std::make_shared<Stepped>()});
  });
}

}  // namespace

constinit const Operation kOptimStep = {
    .path = "optim_step", .run = optim_step, .size = BodySize::kTiny};

}  // namespace strata::server
