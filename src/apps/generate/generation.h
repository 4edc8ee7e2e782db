// SPDX-License-Identifier: Apache-2.0
// What generate and chat share: a loaded model with its text side, and one answer streamed as its
// tokens come.
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/context.h"
#include "apps/generate/sampling.h"
#include "base/function_ref.h"
#include "engine/runner.h"
#include "engine/sampling/sampling_loop.h"
#include "report/word_wrap.h"
#include "setup/stages.h"
#include "setup/text_stack.h"
#include "structured/grammar.h"

namespace strata::apps {

struct GenerationOptions : EngineSetup {
  std::string adapter;  // PEFT directory; empty: the base
  TemplateChoice chat = {};
  int64_t max_tokens = 256;
  SamplingChoices sampling = {};
  std::optional<uint64_t> seed;   // drawn, and printed, when absent and not greedy
  std::vector<std::string> stop;  // texts that end the answer; they are not part of it
  std::string json_schema;        // a file whose schema answers fit; empty: they are free
  StageOptions division = {};
  std::string speculate = "none";  // or "mtp": drafts of multi-token prediction
  int64_t draft_tokens = 1;        // of a step, where it speculates
};

inline constexpr std::string_view kInterrupted = "interrupt";

struct Generated {
  std::string text;
  std::vector<int32_t> tokens;   // an end token included
  std::vector<float> logprobs;   // of the raw logits
  std::string_view stop_reason;  // "eos", "stop", "length" or kInterrupted
  double seconds = 0;            // the prompt included
  engine::SamplingLoop::Drafts drafts;
};

uint64_t draw_seed();
// On stdout, at once.
void print_piece(std::string_view piece);

// An answer on stdout as it comes. At a terminal no word is broken at the right edge.
class AnswerPrinter {
 public:
  void print(std::string_view piece) { print_piece(wrap_.push(piece)); }
  // What is left of it, and the end of its line.
  void finish() { print_piece(wrap_.flush() + "\n"); }

 private:
  report::WordWrap wrap_{report::terminal_columns(stdout)};
};

class Generator {
 public:
  // Loads all. Throws Error for a fault of the options or files.
  explicit Generator(const GenerationOptions& options) : Generator(options, nullptr) {}
  // Loads the stage of this rank (borrows it). All ranks have the same options, with a seed, and
  // make the same calls.
  Generator(const GenerationOptions& options, Comm& comm) : Generator(options, &comm) {}

  [[nodiscard]] const TextStack& text() const { return text_; }
  [[nodiscard]] const SamplingSettings& sampling() const { return sampling_; }
  [[nodiscard]] int64_t max_tokens() const { return options_.max_tokens; }  // of an answer
  // The seed of the first answer; none where tokens are chosen greedily.
  [[nodiscard]] std::optional<uint64_t> seed() const { return seed_; }
  // Answers end at this id too.
  void add_end_token(int32_t id) { end_tokens_.push_back(id); }
  // These special tokens are part of the text of answers; others are not.
  void show_marks(std::vector<std::string_view> marks) { marks_ = std::move(marks); }
  // Sets an option of the answers that follow by its name on the command line, without dashes: of
  // the choice of tokens, max-tokens or seed. Throws Error where there is none, or no such value.
  void set_option(const std::string& name, const std::string& value);
  // What they are now, for people.
  [[nodiscard]] std::string options_text() const;
  // Positions that this run has, prompt and answer together.
  [[nodiscard]] int64_t context() const { return runner_->engine().config().context(); }
  // Behind what is too long for it.
  [[nodiscard]] std::string context_note() const {
    return api::context_note(context(), runner_->engine().config().max_position_embeddings);
  }
  // Answers `prompt`; `write` gets the text in pieces as it is certain. Answer i draws as
  // sample i of a server's request with that seed. Rank 0's `stop` is asked before each step
  // whether to end there.
  Generated generate(const std::vector<int32_t>& prompt, FunctionRef<void(std::string_view)> write,
                     FunctionRef<bool()> stop);

 private:
  Generator(const GenerationOptions& options, Comm* comm);
  // Throws Error where the context has no space for one.
  [[nodiscard]] int64_t most_answer_tokens(int64_t prompt_tokens) const;
  // The request for the next answer, which draws from a seed of its own.
  api::SampleRequest next_request(const std::vector<int32_t>& prompt);

  GenerationOptions options_;
  LoadSpec spec_;
  TextStack text_;
  std::vector<int32_t> end_tokens_;
  std::vector<std::string_view> marks_;
  LoneComm alone_;
  engine::RunPlan plan_;
  std::unique_ptr<engine::Runner> runner_;
  api::AdapterSlot slot_ = api::AdapterSlot::kBase;
  SamplingSettings sampling_;
  std::optional<structured::Grammar> grammar_;  // that answers fit, or none
  std::optional<uint64_t> seed_;
  int64_t num_answers_ = 0;
};

}  // namespace strata::apps
