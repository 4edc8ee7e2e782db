// SPDX-License-Identifier: Apache-2.0
#include "server/openai/sampling_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "api/context.h"
#include "api/sampling_options.h"
#include "server/openai/openai_error.h"
#include "server/tinker/protocol/common_fields.h"
#include "server/tinker/service/result_size.h"

namespace strata::server {
namespace {

constexpr int64_t kMostChoices = 128;
constexpr size_t kMostStops = 16;  // OpenAI takes 4; evaluations send more
constexpr size_t kMostStopBytes = 1024;
constexpr double kMostAnswerBytes = 64.0 * (1 << 20);
constexpr double kTokenBytes = 16;     // of an answer's text, about
constexpr double kLogprobBytes = 120;  // of a token with its logprob, as JSON
// What an answer may have where the request does not say: rows keep space for all that they may
// still take, so one that may take all of a long context would keep others out.
constexpr int64_t kMostUnasked = 4096;

std::optional<int32_t> parse_token_id(const std::string& text, int64_t vocab_size) {
  int32_t token = -1;
  std::from_chars(text.data(), text.data() + text.size(), token);
  // "05" too would be 5, which then counts twice.
  if (token < 0 || token >= vocab_size || std::to_string(token) != text) return std::nullopt;
  return token;
}

int32_t read_biased_token(const text::Fields& body, const std::string& name, int64_t vocab_size) {
  const std::optional<int32_t> token = parse_token_id(name, vocab_size);
  if (!token) {
    body.fail("logit_bias",
              fmt::format("'{}' is no token id from 0 to {}", name.substr(0, 40), vocab_size - 1));
  }
  return *token;
}

float read_bias(const text::Fields& biases, const std::string& name) {
  const double add = biases.number(name);
  if (add < -api::kMostLogitBias || add > api::kMostLogitBias) {
    biases.fail(name, fmt::format("got {0}, wanted -{1} to {1}", add, api::kMostLogitBias));
  }
  return static_cast<float>(add);
}

void read_logit_bias(const text::Fields& body, const api::BaseInfo& base, api::Sample& sample) {
  if (!body.has("logit_bias")) return;
  const text::Fields biases = body.object("logit_bias");
  biases.each_name([&](const std::string& name) {
    if (sample.logit_bias.size() == api::kMostLogitBiases) {
      body.fail("logit_bias", fmt::format("has more than {} entries", api::kMostLogitBiases));
    }
    const int32_t token = read_biased_token(body, name, base.vocab_size);
    sample.logit_bias.push_back({token, read_bias(biases, name)});
  });
}

void read_number_options(const text::Fields& body, api::Sample& sample) {
  for (const api::SamplingOption& row : api::kSamplingOptions) {
    if (!body.has(row.name)) continue;
    const double value = body.number(row.name);
    if (!row.allows(static_cast<float>(value)))
      body.fail(row.name, fmt::format("got {}, wanted {}", value, row.wanted));
    sample.*row.field = static_cast<float>(value);
  }
  // Logits divided by less than a thousandth leave the range of numbers.
  if (sample.temperature > 0 && sample.temperature < 1e-3f) {
    body.fail("temperature",
              fmt::format("got {}, wanted 0, or 0.001 and more", sample.temperature));
  }
}

[[noreturn]] void throw_prompt_too_long(const api::BaseInfo& base, std::string_view param,
                                        size_t bytes, int64_t least_tokens) {
  throw OpenAiFault(
      ErrorCode::kInvalidArgument,
      fmt::format("This model's maximum context length is {} tokens. However, your {} has {} "
                  "bytes, which are at least {} tokens. Please reduce its length{}.",
                  base.max_context, param, bytes, least_tokens,
                  api::context_note(base.max_context, base.model_context)),
      std::string(param), "context_length_exceeded");
}

void check_context_length(const api::BaseInfo& base, int64_t prompt, int64_t max_tokens,
                          std::string_view param) {
  if (!api::find_context_fault(prompt, max_tokens, base.max_context)) return;
  throw OpenAiFault(
      ErrorCode::kInvalidArgument,
      fmt::format("This model's maximum context length is {} tokens. However, you requested {} "
                  "tokens in the {} and {} for the completion. Please reduce the length of "
                  "either{}.",
                  base.max_context, prompt, param, max_tokens,
                  api::context_note(base.max_context, base.model_context)),
      std::string(param), "context_length_exceeded");
}

// What the JSON of an answer with so many tokens takes, about.
double estimate_answer_bytes(const OutputOptions& telling, double tokens) {
  const double logprobs =
      telling.logprobs ? kLogprobBytes * static_cast<double>(1 + telling.top_logprobs) : 0.0;
  return tokens * (kTokenBytes + logprobs);
}

double most_answer_tokens(const AnswerOrder& order) {
  double tokens = 0;
  for (const api::Sample& sample : order.samples) {
    const int64_t each = sample.max_tokens + (order.echo ? std::ssize(sample.prompt) : 0);
    tokens += static_cast<double>(sample.num_samples * each);
  }
  return tokens;
}

}  // namespace

OutputOptions read_stream_options(const text::Fields& body) {
  OutputOptions telling;
  telling.stream = body.boolean_or("stream", false);
  if (!body.has("stream_options")) return telling;
  if (!telling.stream) body.fail("stream_options", "needs stream: true");
  const text::Fields options = body.object("stream_options");
  static constexpr std::string_view kKnown[] = {"include_usage", "include_obfuscation"};
  refuse_unknown_fields(options, kKnown);
  if (options.boolean_or("include_obfuscation", false)) {
    options.fail("include_obfuscation", "true is not supported: nothing is added to chunks here");
  }
  telling.stream_usage = options.boolean_or("include_usage", false);
  return telling;
}

void read_sampling(const text::Fields& body, const ServedText& text, const api::BaseInfo& base,
                   uint64_t fallback_seed, api::Sample& sample) {
  static_cast<api::SampleRequest&>(sample) = text.defaults;
  sample.scaled_logprobs = true;
  read_number_options(body, sample);
  if (body.has("top_k")) {
    sample.top_k = std::max<int64_t>(0, body.integer("top_k", -1, INT32_MAX));
  }
  sample.top_k = std::min(sample.top_k, base.vocab_size);
  sample.seed = body.maybe_int64_bits("seed").value_or(fallback_seed);
  sample.num_samples = body.integer_or("n", 1, 1, kMostChoices);
  sample.stop = base.end_tokens;
  read_logit_bias(body, base, sample);
  if (body.has("stop")) sample.stop_texts = read_stop_texts(body, kMostStops, kMostStopBytes);
}

std::vector<int32_t> encode_prompt(const ServedText& text, const api::BaseInfo& base,
                                   std::string_view prompt, std::string_view param,
                                   bool add_special, const TakeMemory& take) {
  // A text that is too long by its bytes alone is not encoded at all.
  const int64_t least = std::max(base.max_context, text.tokenizer.least_tokens(prompt));
  // What the tokenizer adds to a text that has it already is there once.
  const size_t doubled = add_special ? text.tokenizer.num_doubled_at_start(prompt) : 0;
  const auto most = static_cast<size_t>(std::max<int64_t>(0, base.max_context - 1)) + doubled;
  if (least == base.max_context) {
    auto ids = text.tokenizer.encode_within(prompt, {.most = most, .hold = take}, add_special);
    if (ids) return {ids->begin() + static_cast<std::ptrdiff_t>(doubled), ids->end()};
  }
  throw_prompt_too_long(base, param, prompt.size(), least);
}

void set_max_tokens(const ServedText& text, const api::BaseInfo& base,
                    std::optional<int64_t> max_tokens, std::string_view param,
                    api::Sample& sample) {
  const int64_t prompt = std::ssize(sample.prompt);
  const int64_t left = base.max_context - prompt;
  check_context_length(base, prompt, max_tokens.value_or(1), param);
  const int64_t unasked = std::min({left, text.longest_sample - prompt, kMostUnasked});
  sample.max_tokens = std::max<int64_t>(1, max_tokens.value_or(unasked));
}

void count_prompt_tokens(AnswerOrder& order) {
  for (const api::Sample& sample : order.samples) order.prompt_tokens += std::ssize(sample.prompt);
}

int64_t most_answer_bytes(const AnswerOrder& order) {
  int64_t bytes = order.num_choices() * kChoiceBytes;
  for (const api::Sample& sample : order.samples)
    bytes += prompt_table_bytes(sample) + most_sampled_bytes(sample);
  return bytes +
         static_cast<int64_t>(estimate_answer_bytes(order.telling, most_answer_tokens(order)));
}

void check_answer_size(const AnswerOrder& order) {
  const double tokens = most_answer_tokens(order);
  const double bytes = estimate_answer_bytes(order.telling, tokens);
  if (bytes <= kMostAnswerBytes) return;
  throw OpenAiFault(ErrorCode::kInvalidArgument,
                    fmt::format("n: an answer of {:.0f} tokens could have {:.0f} bytes, the limit "
                                "is {:.0f}; ask for less of n, max_tokens or logprobs",
                                tokens, bytes, kMostAnswerBytes),
                    "n", "");
}

void refuse_unknown_fields(const text::Fields& body, std::span<const std::string_view> known) {
  body.each_name([&](const std::string& name) {
    if (std::ranges::find(known, name) != known.end()) return;
    refuse_parameter(name.substr(0, 100), "is not supported by this server");
  });
}

void refuse_unsupported_values(const text::Fields& body) {
  if (body.has("modalities") && body.strings("modalities") != std::vector<std::string>{"text"}) {
    refuse_parameter("modalities", "only [\"text\"] is supported");
  }
  if (body.boolean_or("store", false)) refuse_parameter("store", "nothing is stored here");
  const std::string tier = body.string_or("service_tier", "auto");
  if (tier != "auto" && tier != "default") {
    refuse_parameter("service_tier", "only auto and default are supported");
  }
}

}  // namespace strata::server
