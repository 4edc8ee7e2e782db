// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/generation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <random>

#include "api/sampling_options.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "model/adapter/io.h"
#include "setup/adapter_texts.h"
#include "setup/engine_setup.h"
#include "structured/json_schema.h"
#include "text/harmony_reader.h"
#include "text/stop_finder.h"
#include "text/tokenizer/detokenizer.h"

namespace strata::apps {
namespace {

void check_stops(const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) throw Error(ErrorCode::kInvalidArgument, "--stop: got an empty text");
  }
}

void check_drafts_of_division(int64_t draft_tokens, const StageOptions& division) {
  if (draft_tokens == 0 || division.stages * division.tensor * division.expert == 1) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("--speculate mtp and {}: a model that is divided makes no drafts yet; "
                          "give one",
                          division.ranks.empty() ? "--stages" : "--ranks"));
}

LoadSpec read_generation_spec(const GenerationOptions& options) {
  LoadSpec spec = read_spec(options);
  // An adapter is loaded whole.
  const bool adapts_mtp =
      !options.adapter.empty() && model::adapter_dir_has_mtp(spec.parsed.config, options.adapter);
  if (adapts_mtp || resolve_draft_tokens(options.speculate, options.draft_tokens) > 0)
    spec.mtp = model::UseMtp::kAlways;
  return spec;
}

// The grammar of --json-schema FILE.
structured::Grammar compile_schema_file(const std::string& file, const TextStack& text,
                                        int64_t vocab_size) {
  structured::require_grammars();
  if (text.chat_template() && text::writes_harmony(*text.chat_template())) {
    throw Error(ErrorCode::kUnsupported,
                "--json-schema: the model answers in channels, which an answer of JSON has not");
  }
  const std::string schema = read_file(file, structured::kMaxSchemaBytes);
  return structured::compile_grammar(structured::Vocabulary(text.tokenizer(), vocab_size),
                                     {.text = schema}, "--json-schema " + file);
}

// The text of an answer as its tokens come, up to a text that ends it.
class AnswerText {
 public:
  // `marks`: special tokens that are text.
  AnswerText(const text::Tokenizer& tokenizer, const std::vector<std::string_view>& marks,
             const std::vector<std::string>& stops, FunctionRef<void(std::string_view)> write)
      : detokenizer_(tokenizer, /*skip_special=*/true, marks), stops_(stops), write_(write) {}

  void push(int32_t token) { emit(stops_.push(detokenizer_.push(token))); }
  [[nodiscard]] bool found_stop() const { return stops_.found(); }
  // Bytes that are no character yet are text too, unless the answer was interrupted.
  void finish(bool is_interrupted) {
    if (!found_stop() && !is_interrupted) emit(stops_.push(detokenizer_.flush()));
    emit(stops_.flush());
  }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  void emit(const std::string& piece) {
    text_ += piece;
    if (!piece.empty()) write_(piece);
  }

  text::IncrementalDetokenizer detokenizer_;
  text::StopFinder stops_;
  FunctionRef<void(std::string_view)> write_;
  std::string text_;
};

// Pushes tokens until the answer ends, or until `stop` says so: whether it did, on rank 0.
bool sample_until_end(engine::Runner& runner, engine::SamplingLoop& loop, FunctionRef<bool()> stop,
                      AnswerText& text) {
  while (!loop.done() && !text.found_stop()) {
    if (runner.broadcast_decision(stop())) return true;
    for (const engine::SampledToken& token : loop.step()) text.push(token.token);
  }
  return false;
}

std::string_view stop_reason_of(const AnswerText& text, bool is_interrupted, bool met_end_token) {
  if (text.found_stop()) return "stop";
  if (is_interrupted) return kInterrupted;
  return met_end_token ? "eos" : "length";
}

void print_sampling(const SamplingSettings& sampling) {
  if (!sampling.taken.empty())
    fmt::print(stderr, "[from generation_config.json: {}]\n", sampling.taken);
  if (sampling.is_plain) {
    fmt::print(stderr,
               "[the model names no sampling: {}; --temperature, --top-k, --top-p set it]\n",
               sampling_text(sampling.request));
  }
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
      text_(texts_with_adapter(spec_.texts, options.adapter, options.chat), options.chat),
      end_tokens_(text_.end_tokens().stop),
      sampling_(load_sampling_settings(options.model, options.sampling)) {
  check_stops(options.stop);
  const int64_t drafts = resolve_draft_tokens(options.speculate, options.draft_tokens);
  check_drafts_of_division(drafts, options.division);
  if (!options.json_schema.empty())
    grammar_ = compile_schema_file(options.json_schema, text_, spec_.parsed.config.vocab_size);
  plan_.pipeline = plan_stages(spec_, options.division);
  runner_ = load_runner(comm == nullptr ? alone_ : *comm, plan_, spec_, {.draft_tokens = drafts});
  if (!options.adapter.empty()) slot_ = runner_->load_adapter(options.adapter);
  if (!sampling_.greedy()) seed_ = options.seed ? *options.seed : draw_seed();
  const std::string choice = template_choice_line(spec_.texts, options.adapter, options.chat);
  if (!choice.empty() && runner_->is_first_rank()) fmt::print(stderr, "[{}]\n", choice);
  if (runner_->is_first_rank()) print_sampling(sampling_);
}

void Generator::set_option(const std::string& name, const std::string& value) {
  SamplingChoices choices;
  std::optional<uint64_t> seed;
  OptionTable table;
  add_sampling_rows(table, choices);
  table.seed("seed", seed, "");
  table.integer("max-tokens", options_.max_tokens, {1, INT64_MAX, "1 or more"}, "");
  std::string dashed = name;
  std::ranges::replace(dashed, '_', '-');
  const OptionRow* row = table.find(dashed);
  if (row == nullptr) {
    std::vector<std::string> known;
    for (const OptionRow& each : table.rows()) known.push_back(each.name);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{}: no such option; there are {}", name, fmt::join(known, ", ")));
  }
  row->set(value);
  apply_choices(choices, sampling_.request);
  if (seed) num_answers_ = 0;
  if (seed) seed_ = seed;
  if (!sampling_.greedy() && !seed_) seed_ = draw_seed();
}

std::string Generator::options_text() const {
  std::string out = sampling_text(sampling_.request);
  if (!sampling_.greedy()) out += fmt::format(", seed {}", seed_.value_or(0));
  return out + fmt::format(", max-tokens {}", options_.max_tokens);
}

int64_t Generator::most_answer_tokens(int64_t prompt_tokens) const {
  const int64_t budget = context() - prompt_tokens;
  if (budget < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("prompt: {} tokens, the model's context is {}{}", prompt_tokens,
                            context(), context_note()));
  }
  return std::min(options_.max_tokens, budget);
}

api::SampleRequest Generator::next_request(const std::vector<int32_t>& prompt) {
  api::SampleRequest request = sampling_.request;
  request.prompt = prompt;
  request.slot = slot_;
  request.seed = api::sample_seed(seed_.value_or(0), num_answers_++);
  request.stop = end_tokens_;
  request.max_tokens = most_answer_tokens(std::ssize(prompt));
  return request;
}

Generated Generator::generate(const std::vector<int32_t>& prompt,
                              FunctionRef<void(std::string_view)> write, FunctionRef<bool()> stop) {
  const double begin = now_seconds();
  const api::SampleRequest request = next_request(prompt);
  AnswerText text(text_.tokenizer(), marks_, options_.stop, write);
  engine::SamplingLoop loop(*runner_);
  const size_t id = loop.add(request);
  if (grammar_) loop.set_matcher(id, grammar_->start(end_tokens_));
  const bool is_interrupted = sample_until_end(*runner_, loop, stop, text);
  text.finish(is_interrupted);
  if (!loop.done()) loop.finish(id);
  api::SampleResult result = loop.take_result(id);
  return {.text = text.take(),
          .tokens = std::move(result.tokens),
          .logprobs = std::move(result.logprobs),
          .stop_reason = stop_reason_of(text, is_interrupted, result.stopped),
          .seconds = now_seconds() - begin,
          .drafts = loop.drafts()};
}

}  // namespace strata::apps
