#include "apps/generation.h"

#include <fmt/format.h>

#include <algorithm>
#include <random>
#include <utility>

#include "apps/engine_setup.h"
#include "base/clock.h"
#include "base/error.h"
#include "engine/sampling_loop.h"
#include "text/detokenizer.h"

namespace strata::apps {
namespace {

void check_stops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) throw Error(ErrorCode::kInvalidArgument, "--stop: got an empty text");
  }
}

uint64_t random_seed() {
  std::random_device device;
  return device() & 0x7fffffffu;  // short enough to type again
}

}  // namespace

StopFinder::StopFinder(std::vector<std::string> stops) : stops_(std::move(stops)) {}

std::string StopFinder::push(std::string_view piece) {
  if (found_) return "";
  held_.append(piece);
  size_t first = std::string::npos;
  for (const std::string& stop : stops_) first = std::min(first, held_.find(stop));
  if (first != std::string::npos) {
    found_ = true;
    return held_.substr(0, first);
  }
  size_t keep = 0;  // the longest end of the text that may begin a stop
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held_.size()); size > keep; --size) {
      if (std::string_view(held_).substr(held_.size() - size) ==
          std::string_view(stop).substr(0, size))
        keep = size;
    }
  }
  std::string certain = held_.substr(0, held_.size() - keep);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopFinder::flush() { return found_ ? "" : std::exchange(held_, ""); }

Generator::Generator(const GenerationOptions& options)
    : options_(options), text_(options.model), end_tokens_(text_.end_tokens().stop) {
  check_stops(options.stop);
  engine_ = make_engine(options);
  if (!options.adapter.empty()) slot_ = engine_->load_adapter(options.adapter);
  seed_ = options.seed ? *options.seed : random_seed();
}

Generated Generator::run(const std::vector<int32_t>& prompt,
                         FunctionRef<void(std::string_view)> write) {
  const double begin = now_seconds();
  api::SampleRequest request;
  request.prompt = prompt;
  request.slot = slot_;
  request.temperature = static_cast<float>(options_.temperature);
  request.top_k = options_.top_k;
  request.top_p = static_cast<float>(options_.top_p);
  request.seed = seed_ + num_answers_++;
  request.stop = end_tokens_;
  const int64_t room =
      engine_->config().max_position_embeddings - static_cast<int64_t>(prompt.size());
  if (room < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("prompt: {} tokens, the model's context is {}", prompt.size(),
                            engine_->config().max_position_embeddings));
  }
  request.max_tokens = std::min(options_.max_tokens, room);

  Generated out;
  text::IncrementalDetokenizer detokenizer(text_.tokenizer(), /*skip_special=*/true);
  StopFinder stops(options_.stop);
  const auto emit = [&](const std::string& piece) {
    out.text += piece;
    if (!piece.empty()) write(piece);
  };
  engine::SamplingLoop loop(*engine_);
  const size_t id = loop.add(request);
  while (!loop.done() && !stops.found()) {
    for (const engine::SampledToken& token : loop.step())
      emit(stops.push(detokenizer.push(token.token)));
  }
  if (!stops.found()) emit(stops.push(detokenizer.flush()));
  emit(stops.flush());
  if (!loop.done()) loop.finish(id);
  api::SampleResult result = loop.take(id);
  out.stop_reason = stops.found() ? "stop" : result.stopped ? "eos" : "length";
  out.tokens = std::move(result.tokens);
  out.logprobs = std::move(result.logprobs);
  out.seconds = now_seconds() - begin;
  return out;
}

}  // namespace strata::apps
