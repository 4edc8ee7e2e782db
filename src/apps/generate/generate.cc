// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/generate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <optional>

#include "apps/options.h"
#include "backend/thread_comm.h"
#include "base/error.h"
#include "base/log.h"
#include "base/stop.h"
#include "report/format.h"
#include "setup/ranks.h"

namespace strata::apps {
namespace {

constexpr size_t kMostPrompt = size_t{64} << 20;  // bytes of stdin

std::string answer_json(const GenerateOptions& options, const Generated& answer,
                        std::optional<uint64_t> seed) {
  boost::json::object out;
  out["prompt"] = options.prompt;
  out["text"] = answer.text;
  out["tokens"] = boost::json::value_from(answer.tokens);
  out["logprobs"] = boost::json::value_from(answer.logprobs);
  out["stop_reason"] = std::string(answer.stop_reason);
  if (seed) out["seed"] = *seed;
  if (options.generation.speculate != "none") {
    out["drafts_read"] = answer.drafts.read;
    out["drafts_accepted"] = answer.drafts.accepted;
  }
  return boost::json::serialize(out);
}

// All of stdin, without the line break that ends its last line.
std::string read_prompt_from_stdin() {
  std::string text;
  char bytes[65536];
  while (const size_t count = std::fread(bytes, 1, sizeof(bytes), stdin)) {
    text.append(bytes, count);
    if (text.size() > kMostPrompt) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--prompt: stdin has more than {} bytes", kMostPrompt));
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

// The text that is named, or stdin's.
std::string read_prompt(const GenerateOptions& options) {
  if (options.has_prompt && options.prompt != "-") return options.prompt;
  if (!options.has_prompt && ::isatty(STDIN_FILENO) == 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "--prompt: no text is given; want --prompt TEXT, or --prompt - or a pipe for "
                "stdin (strata chat holds a conversation)");
  }
  return read_prompt_from_stdin();
}

void print_figures(const GenerateOptions& options, const Generated& answer,
                   std::optional<uint64_t> seed) {
  const std::string drafts =
      options.generation.speculate == "none"
          ? ""
          : fmt::format(", {} of {} drafts accepted", answer.drafts.accepted, answer.drafts.read);
  const std::string of_seed = seed ? fmt::format(", seed {}", *seed) : "";
  fmt::print(stderr, "[{} tokens, {} tokens/s, ended by {}{}{}]\n", answer.tokens.size(),
             report::format_count(static_cast<double>(answer.tokens.size()) / answer.seconds),
             answer.stop_reason, of_seed, drafts);
}

bool is_chat(const GenerationOptions& options) {
  return !options.chat.file.empty() || !options.chat.vars.empty();
}

// The prompt as it is or, where a chat template is chosen, as a user's turn.
std::vector<int32_t> encode_prompt(const GenerationOptions& options, Generator& generator,
                                   const std::string& text) {
  const TextStack& stack = generator.text();
  std::vector<int32_t> prompt = is_chat(options)
                                    ? stack.tokenizer().encode(stack.render_user_turn(text))
                                    : stack.encode_text(text);
  if (is_chat(options)) {
    if (const auto end = stack.find_turn_end_token()) generator.add_end_token(*end);
  }
  if (prompt.empty())
    throw Error(ErrorCode::kInvalidArgument, "--prompt: got no token; the text is empty");
  return prompt;
}

// All ranks generate; the first one prints, and gets signals and the exit code.
void generate_on_rank(const GenerateOptions& options, Comm& comm, int& exit_code) {
  Generator generator(options.generation, comm);
  const std::vector<int32_t> prompt = encode_prompt(options.generation, generator, options.prompt);
  const bool prints = comm.rank() == 0;
  if (prints && !is_chat(options.generation) &&
      generator.text().tokenizer().num_doubled_at_start(options.prompt) > 0) {
    log(LogLevel::kWarning,
        "--prompt: it begins with what the tokenizer adds to a text; the model reads that once");
  }
  const bool streams = prints && !options.json;
  AnswerPrinter printer;
  if (streams && options.echo) printer.print(options.prompt);
  const auto write = [&](std::string_view piece) {
    if (streams) printer.print(piece);
  };
  std::optional<StopSignals> signals;
  if (prints) signals.emplace("");
  const auto stop = [] { return StopSignals::asked(); };
  const Generated answer = generator.generate(prompt, write, stop);
  if (!prints) return;
  if (options.json) {
    print_piece(answer_json(options, answer, generator.seed()) + "\n");
  } else {
    printer.finish();
  }
  print_figures(options, answer, generator.seed());
  exit_code = StopSignals::exit_code();
}

void check_ranks_of_generate(const schedule::ParallelLayout& layout,
                             const GenerationOptions& options) {
  if (layout.expert > 1 && layout.tensor > 1) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--ranks {}: generate divides a model by tensor=N or expert=N, not by "
                            "both yet; give one of them",
                            layout.text()));
  }
  if (layout.data > 1) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--ranks {}: generate has one answer and no data ranks, which share "
                            "the sequences of a batch; give pipeline=N, tensor=N or expert=N",
                            layout.text()));
  }
  if (options.division.stages > 1) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("--ranks {} and --stages {}: generate divides a model by one of them "
                            "alone",
                            layout.text(), options.division.stages));
  }
  check_layout(layout, read_spec(options).parsed.config);
}

// One of several processes: the first one reads the prompt and draws the seed.
int generate_as_rank(Comm& comm, const schedule::ParallelLayout& layout, GenerateOptions options) {
  check_ranks_of_generate(layout, options.generation);
  check_ranks_alike(comm,
                    collect_rank_facts(read_spec(options.generation), option_table_of(options)));
  if (comm.rank() == 0) options.prompt = read_prompt(options);
  broadcast(comm, options.prompt);
  uint64_t seed = options.generation.seed ? *options.generation.seed : draw_seed();
  broadcast(comm, seed);
  options.generation.seed = seed;
  options.generation.division = stages_with_layout(options.generation.division, layout);
  int exit_code = 0;
  generate_on_rank(options, comm, exit_code);
  return exit_code;
}

}  // namespace

int run_generate(const GenerateOptions& given) {
  if (!given.generation.division.ranks.empty()) {
    return run_as_rank(given.generation.division,
                       [&](Comm& comm, const schedule::ParallelLayout& layout) {
                         return generate_as_rank(comm, layout, given);
                       });
  }
  GenerateOptions options = given;
  options.prompt = read_prompt(given);  // before minutes of loading
  if (!options.generation.seed) options.generation.seed = draw_seed();
  int exit_code = 0;
  run_ranks(options.generation.division.stages,
            [&](Comm& comm) { generate_on_rank(options, comm, exit_code); });
  return exit_code;
}

}  // namespace strata::apps
