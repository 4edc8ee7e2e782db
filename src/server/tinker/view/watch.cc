// SPDX-License-Identifier: Apache-2.0
#include "server/tinker/view/watch.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/log.h"

namespace strata::server {
namespace {

constexpr size_t kEndedRuns = 64;
constexpr size_t kReadings = 11;
constexpr size_t kHistory = 300;

const char* operation_name(const api::Operation& op) {
  struct Name {
    const char* operator()(const api::CreateModel&) const { return "create_model"; }
    const char* operator()(const api::ForwardBackward& work) const {
      return work.forward_only ? "forward" : "forward_backward";
    }
    const char* operator()(const api::OptimStep&) const { return "optim_step"; }
    const char* operator()(const api::SaveState&) const { return "save_weights"; }
    const char* operator()(const api::SaveForSampler&) const { return "save_weights_for_sampler"; }
    const char* operator()(const api::LoadState&) const { return "load_weights"; }
    const char* operator()(const api::UnloadModel&) const { return "unload_model"; }
    const char* operator()(const api::Sample&) const { return "sample"; }
  };
  return std::visit(Name{}, op);
}

// A mean over what the client weighted; where a loss has no weights, over its positions.
double loss_weight(const api::ForwardBackward& op) {
  double weight = 0.0;
  for (const api::Datum& datum : op.data) {
    const std::vector<float>& weights = datum.inputs[api::LossInput::kWeights];
    if (weights.empty()) weight += static_cast<double>(datum.tokens.size());
    for (const float w : weights) weight += std::fabs(static_cast<double>(w));
  }
  return weight;
}

const char* outcome_name(const api::Outcome& outcome) {
  const auto* failure = std::get_if<api::Failure>(&outcome);
  if (failure == nullptr) return "ok";
  return failure->category == api::FaultCategory::kUser ? "user" : "server";
}

void add_outcome(const WatchedCommand& command, const api::Outcome& outcome, WatchedRun& run) {
  run.in_flight.clear();
  if (const auto* result = std::get_if<api::ForwardBackwardResult>(&outcome)) {
    const auto loss = result->metrics.find("loss:sum");
    if (loss == result->metrics.end()) return;
    if (command.evaluates) {
      run.evaluations.add_evaluation(run.steps, loss->second, command.loss_weight);
    } else {
      run.curve.add_loss(loss->second, command.loss_weight);
    }
  } else if (const auto* step = std::get_if<api::StepResult>(&outcome)) {
    if (!step->stepped) return;
    run.steps = step->step;
    run.curve.finish_step(step->step);
  }
}

}  // namespace

WatchedCommand watched_command(const api::Command& command, double now) {
  WatchedCommand out{
      .operation = operation_name(command.op), .run = command.model.text, .begin = now};
  const auto* op = std::get_if<api::ForwardBackward>(&command.op);
  if (op == nullptr) return out;
  out.loss_weight = loss_weight(*op);
  out.evaluates = op->forward_only;
  return out;
}

void Watch::note_run_started(const std::string& id, WatchedRun run) {
  std::erase(ended_, id);
  runs_[id] = std::move(run);
}

void Watch::note_run_ended(const std::string& id) {
  const auto found = runs_.find(id);
  if (found == runs_.end() || !found->second.live) return;
  found->second.live = false;
  ended_.push_back(id);
  if (ended_.size() <= kEndedRuns) return;
  runs_.erase(ended_.front());
  ended_.pop_front();
}

void Watch::note_progress(const WatchedCommand& command, const std::string& how_far) {
  const auto found = runs_.find(command.run);
  if (found != runs_.end()) found->second.in_flight = how_far;
}

void Watch::record_tokens(WatchedCommand& command, int64_t row, int64_t count, double now) {
  std::vector<double>& newest = command.newest_token;
  if (newest.empty()) metrics_.record_first_token(now - command.begin);
  const auto index = static_cast<size_t>(row);
  if (newest.size() <= index) newest.resize(index + 1);
  for (int64_t i = 0; i < count; ++i) {
    const double before = std::exchange(newest[index], now);
    if (before > 0) metrics_.record_token_gap(now - before);
  }
}

void Watch::record_outcome(const WatchedCommand& command, const api::RequestId& request,
                           const api::Outcome& outcome, double now) {
  const char* how = outcome_name(outcome);
  metrics_.record_command(command.operation, how, now - command.begin);
  log(LogLevel::kInfo,
      fmt::format("event=done request={} operation={} model={} outcome={} seconds={:.4f}",
                  request.text, command.operation, command.run.empty() ? "-" : command.run, how,
                  now - command.begin));
  const auto found = runs_.find(command.run);
  if (found != runs_.end()) add_outcome(command, outcome, found->second);
}

Watch::Rate Watch::rate_between(const Reading& a, const Reading& b) {
  const double seconds = b.now - a.now;
  if (seconds <= 0.0) return {};
  return {static_cast<double>(b.trained - a.trained) / seconds,
          static_cast<double>(b.sampled - a.sampled) / seconds};
}

void Watch::record_stats(const EngineStats& stats, double now) {
  if (!readings_.empty() && now - readings_.back().now < 1.0) return;
  const Reading reading{now, stats.trained_tokens, stats.sampled_tokens};
  if (!readings_.empty()) history_.push_back(rate_between(readings_.back(), reading));
  readings_.push_back(reading);
  if (readings_.size() > kReadings) readings_.pop_front();
  if (history_.size() > kHistory) history_.pop_front();
}

Watch::Rate Watch::rate() const {
  return readings_.size() < 2 ? Rate{} : rate_between(readings_.front(), readings_.back());
}

}  // namespace strata::server
