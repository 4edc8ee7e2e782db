// SPDX-License-Identifier: Apache-2.0
#include "server/openai/completion_body.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <string_view>

#include "base/log.h"
#include "server/openai/answer_constraint.h"
#include "server/openai/body_fields.h"
#include "server/openai/openai_error.h"
#include "server/openai/sampling_fields.h"

namespace strata::server {
namespace {

namespace json = boost::json;

constexpr int64_t kUnasked = 16;        // OpenAI's max_tokens
constexpr int64_t kMostChoices = 2048;  // of a request, of all its prompts
constexpr int64_t kMostEchoed = 8192;   // logprobs in a stream's first events; half a MiB of JSON

class PromptReader {
 public:
  PromptReader(const text::Fields& body, const ServedText& text, const api::BaseInfo& base,
               const TakeMemory& take)
      : body_(body), text_(text), base_(base), take_(take) {}

  // A text, a list of texts, a list of ids, or a list of such lists.
  std::vector<std::vector<int32_t>> read_prompts() {
    const json::value* prompt = body_.find("prompt");
    if (prompt == nullptr) body_.fail("prompt", "this field is required");
    if (!prompt->is_array()) return {read_prompt(*prompt)};
    const json::array& items = prompt->get_array();
    if (items.empty()) body_.fail("prompt", "the prompt is empty");
    if (items.front().is_number()) return {read_ids(items)};
    std::vector<std::vector<int32_t>> prompts;
    for (const json::value& item : items) {
      if (std::ssize(prompts) == kMostChoices) {
        body_.fail("prompt", fmt::format("has more than {} prompts", kMostChoices));
      }
      prompts.push_back(read_prompt(item));
    }
    return prompts;
  }

  // Bytes of all that were read.
  [[nodiscard]] size_t num_bytes() const { return made_; }

 private:
  void take(size_t bytes) const {
    if (take_) take_(made_ + bytes);
  }
  std::vector<int32_t> read_prompt(const json::value& value) {
    if (value.is_array()) return read_ids(value.get_array());
    if (!value.is_string()) body_.fail("prompt", "wanted a string, a list of them, or token ids");
    const json::string& text = value.get_string();
    warn_once_of_doubled_start({text.data(), text.size()});
    return account_prompt(encode_prompt(text_, base_, {text.data(), text.size()}, "prompt",
                                        /*add_special=*/true,
                                        [this](size_t bytes) { take(bytes); }));
  }
  void warn_once_of_doubled_start(std::string_view prompt) {
    if (has_warned_ || text_.tokenizer.num_doubled_at_start(prompt) == 0) return;
    has_warned_ = true;
    log(LogLevel::kWarning,
        "/v1/completions: a prompt begins with what the tokenizer adds to a text; the model reads "
        "that once");
  }
  std::vector<int32_t> read_ids(const json::array& items) {
    std::vector<int32_t> ids;
    take(items.size() * sizeof(int32_t));
    ids.reserve(items.size());
    for (const json::value& item : items) {
      const int64_t id = item.is_int64() ? item.get_int64() : -1;
      if (id < 0 || id >= base_.vocab_size) {
        body_.fail("prompt", fmt::format("item {}: no token id from 0 to {}", ids.size(),
                                         base_.vocab_size - 1));
      }
      ids.push_back(static_cast<int32_t>(id));
    }
    return account_prompt(std::move(ids));
  }
  // Counts the bytes of a prompt's ids; refuses an empty prompt.
  std::vector<int32_t> account_prompt(std::vector<int32_t> ids) {
    if (ids.empty()) body_.fail("prompt", "the prompt is empty");
    made_ += ids.capacity() * sizeof(int32_t);
    return ids;
  }

  const text::Fields& body_;
  const ServedText& text_;
  const api::BaseInfo& base_;
  const TakeMemory& take_;
  size_t made_ = 0;
  bool has_warned_ = false;
};

void read_logprob_options(const text::Fields& body, OutputOptions& telling) {
  if (!body.has("logprobs")) return;
  telling.logprobs = true;
  telling.top_logprobs = body.integer("logprobs", 0, kMostTopLogprobs);
}

// All of a sample but for its prompt, and max_tokens.
api::Sample read_sample(const text::Fields& body, const ServedText& text, const api::BaseInfo& base,
                        uint64_t fallback_seed, const AnswerOrder& order) {
  api::Sample sample;
  read_sampling(body, text, base, fallback_seed, sample);
  if (body.has("best_of") && body.integer("best_of", 1, 128) != sample.num_samples) {
    refuse_parameter("best_of", "is not supported, unless it is n");
  }
  sample.topk_sample_logprobs = order.telling.top_logprobs;
  sample.prompt_logprobs = order.echo && order.telling.logprobs;
  sample.topk_prompt_logprobs = sample.prompt_logprobs ? order.telling.top_logprobs : 0;
  return sample;
}

// The logprobs of a prompt come in one event of each of its choices, and all may be the first.
void check_streamed_echo_size(const AnswerOrder& order) {
  if (!order.echo || !order.telling.logprobs || !order.telling.stream) return;
  int64_t told = 0;
  for (const api::Sample& sample : order.samples)
    told += sample.num_samples * std::ssize(sample.prompt) * (1 + order.telling.top_logprobs);
  if (told <= kMostEchoed) return;
  refuse_parameter("echo", fmt::format("with logprobs in a stream: the choices' prompts have {} of "
                                       "them, the limit is {}; ask for less, or without stream",
                                       told, kMostEchoed));
}

void check_num_choices(const text::Fields& body, size_t prompts, int64_t choices_each) {
  if (static_cast<int64_t>(prompts) * choices_each <= kMostChoices) return;
  body.fail("prompt", fmt::format("{} prompts and n {} are more than {} choices", prompts,
                                  choices_each, kMostChoices));
}

// Each as `form`, with a prompt of its own.
void add_samples(const ServedText& text, const api::BaseInfo& base, const api::Sample& form,
                 int64_t max_tokens, std::vector<std::vector<int32_t>> prompts,
                 AnswerOrder& order) {
  order.samples.reserve(prompts.size());
  for (std::vector<int32_t>& prompt : prompts) {
    api::Sample& one = order.samples.emplace_back(form);
    one.prompt = std::move(prompt);
    set_max_tokens(text, base, max_tokens, "prompt", one);
  }
}

}  // namespace

AnswerOrder read_completion(const text::Fields& body, const ServedText& text,
                            const api::BaseInfo& base, uint64_t fallback_seed,
                            const TakeMemory& take) {
  if (body.has("suffix")) refuse_parameter("suffix", "is not supported by this server");
  check_fields(body, /*is_chat=*/false);
  refuse_unsupported_values(body);
  AnswerOrder order;
  order.telling = read_stream_options(body);
  read_logprob_options(body, order.telling);
  order.constraint = read_format_constraint(body);
  order.echo = body.boolean_or("echo", false);
  const api::Sample sample = read_sample(body, text, base, fallback_seed, order);
  const int64_t max_tokens = body.integer_or("max_tokens", kUnasked, order.echo ? 0 : 1, INT64_MAX);
  order.drops_answer = max_tokens == 0;
  PromptReader reader(body, text, base, take);
  std::vector<std::vector<int32_t>> prompts = reader.read_prompts();
  check_num_choices(body, prompts.size(), sample.num_samples);
  if (take) take(reader.num_bytes() + prompts.size() * sizeof(api::Sample));
  add_samples(text, base, sample, max_tokens, std::move(prompts), order);
  check_answer_size(order);
  check_streamed_echo_size(order);
  count_prompt_tokens(order);
  if (order.echo) order.kept = reader.num_bytes();
  return order;
}

}  // namespace strata::server
