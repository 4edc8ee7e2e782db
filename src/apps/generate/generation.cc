// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "api/sampling_options.h"
#include "apps/setup/engine_setup.h"
#include "base/clock.h"
#include "base/error.h"
#include "model/adapter/io.h"
#include "text/stop_finder.h"
#include "text/tokenizer/detokenizer.h"

namespace strata::apps {
namespace {

void check_stops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) throw Error(ErrorCode::kInvalidArgument, "--stop: got an empty text");
  }
}

LoadSpec read_generation_spec(const GenerationOptions& options) {
  LoadSpec spec = read_spec(options);
  // An adapter is loaded whole.
  const bool adapts_mtp =
      !options.adapter.empty() && model::adapts_mtp(spec.parsed.config, options.adapter);
  if (adapts_mtp || resolve_draft_tokens(options.speculate, options.draft_tokens) > 0)
    spec.mtp = model::UseMtp::kAlways;
  return spec;
}

}  // namespace

void print_piece(std::string_view piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

uint64_t draw_seed() {
  std::random_device device;
  return device() & 0x7fffffffu;  // short enough to type again
}

Generator::Generator(const GenerationOptions& options, Comm* comm)
    : options_(options),
      spec_(read_generation_spec(options)),
      text_(spec_.texts),
      end_tokens_(text_.end_tokens().stop),
      sampling_(load_sampling_settings(options.model, options.sampling)) {
  check_stops(options.stop);
  const int64_t drafts = resolve_draft_tokens(options.speculate, options.draft_tokens);
  if (drafts > 0 && options.division.stages > 1) {
    throw Error(ErrorCode::kUnsupported,
                "--speculate mtp and --stages: a model in stages makes no drafts yet; give one");
  }
  plan_ = plan_stages(spec_, options.division);
  runner_ = load_runner(comm == nullptr ? alone_ : *comm, plan_, spec_, {.draft_tokens = drafts});
  if (!options.adapter.empty()) slot_ = runner_->load_adapter(options.adapter);
  if (!sampling_.greedy()) seed_ = options.seed ? *options.seed : draw_seed();
  if (!sampling_.taken.empty() && runner_->is_first_rank())
    fmt::print(stderr, "[from generation_config.json: {}]\n", sampling_.taken);
}

api::SampleRequest Generator::next_request(const std::vector<int32_t>& prompt) {
  api::SampleRequest request = sampling_.request;
  request.prompt = prompt;
  request.slot = slot_;
  request.seed = options_.seed_rule == "server" ? api::sample_seed(seed_.value_or(0), 0)
                                                : seed_.value_or(0) + num_answers_++;
  request.stop = end_tokens_;
  const int64_t budget = context() - std::ssize(prompt);
  if (budget < 1) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("prompt: {} tokens, the model's context is {}", prompt.size(), context()));
  }
  request.max_tokens = std::min(options_.max_tokens, budget);
  return request;
}

Generated Generator::generate(const std::vector<int32_t>& prompt,
                              FunctionRef<void(std::string_view)> write, FunctionRef<bool()> stop) {
  const double begin = now_seconds();
  const api::SampleRequest request = next_request(prompt);
  Generated out;
  text::IncrementalDetokenizer detokenizer(text_.tokenizer(), /*skip_special=*/true);
  text::StopFinder stops(options_.stop);
  const auto emit = [&](const std::string& piece) {
    out.text += piece;
    if (!piece.empty()) write(piece);
  };
  engine::SamplingLoop loop(*runner_);
  const size_t id = loop.add(request);
  bool is_stopped = false;
  while (!loop.done() && !stops.found() && !(is_stopped = runner_->broadcast_decision(stop()))) {
    for (const engine::SampledToken& token : loop.step())
      emit(stops.push(detokenizer.push(token.token)));
  }
  if (!stops.found() && !is_stopped) emit(stops.push(detokenizer.flush()));
  emit(stops.flush());
  if (!loop.done()) loop.finish(id);
  api::SampleResult result = loop.take_result(id);
  out.stop_reason = stops.found()    ? "stop"
                    : is_stopped     ? kInterrupted
                    : result.stopped ? "eos"
                                     : "length";
  out.tokens = std::move(result.tokens);
  out.logprobs = std::move(result.logprobs);
  out.drafts = loop.drafts();
  out.seconds = now_seconds() - begin;
  return out;
}

}  // namespace strata::apps
