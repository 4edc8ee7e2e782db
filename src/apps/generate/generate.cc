#include "apps/generate/generate.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cstdio>
#include <optional>

#include "base/error.h"
#include "report/format.h"

namespace strata::apps {
namespace {

void print_piece(std::string_view piece) {
  std::fwrite(piece.data(), 1, piece.size(), stdout);
  std::fflush(stdout);
}

std::string as_json(const GenerateOptions& options, const Generated& answer,
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

}  // namespace

int run_generate(const GenerateOptions& options) {
  Generator generator(options.generation);
  const std::vector<int32_t> prompt =
      generator.text().tokenizer().encode(options.prompt, /*add_special=*/true);
  if (prompt.empty()) throw Error(ErrorCode::kInvalidArgument, "--prompt: got no token");
  if (!options.json && options.echo) print_piece(options.prompt);
  const auto write = [&](std::string_view piece) {
    if (!options.json) print_piece(piece);
  };
  const Generated answer = generator.run(prompt, write);
  print_piece(options.json ? as_json(options, answer, generator.seed()) + "\n" : "\n");
  const std::string drafts =
      options.generation.speculate == "none"
          ? ""
          : fmt::format(", {} of {} drafts accepted", answer.drafts.accepted, answer.drafts.read);
  const std::string seed = generator.seed() ? fmt::format(", seed {}", *generator.seed()) : "";
  fmt::print(stderr, "[{} tokens, {} tokens/s, ended by {}{}{}]\n", answer.tokens.size(),
             report::format_count(static_cast<double>(answer.tokens.size()) / answer.seconds),
             answer.stop_reason, seed, drafts);
  return 0;
}

}  // namespace strata::apps
