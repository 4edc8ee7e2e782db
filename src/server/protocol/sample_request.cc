// SPDX-License-Identifier: Apache-2.0
#include "server/protocol/sample_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/context.h"
#include "server/protocol/common_fields.h"
#include "server/protocol/model_input.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxSamples = 1024;
constexpr int64_t kMaxTopk = 1024;
constexpr size_t kMaxStopIds = 1024;
constexpr size_t kMaxStopTexts = 64;
constexpr size_t kMaxStopText = 1024;
constexpr double kMaxResultBytes = 256.0 * (1 << 20);

std::vector<int32_t> read_prompt(const Fields& body) {
  std::vector<int32_t> prompt = read_model_input(body.object("prompt"), 0, INT32_MAX);
  if (prompt.empty()) body.fail("prompt", "the prompt is empty");
  return prompt;
}

void read_stop(const Fields& params, SampleOrder& order) {
  api::Sample& command = order.command;
  if (!params.has("stop")) return;
  if (params.is_string("stop") || params.is_array_of_strings("stop")) {
    command.stop_texts = read_stop_texts(params, kMaxStopTexts, kMaxStopText);
    return;
  }
  const std::vector<int64_t> ids = params.integers("stop");
  if (ids.size() > kMaxStopIds) {
    params.fail("stop", fmt::format("has {} ids, the limit is {}", ids.size(), kMaxStopIds));
  }
  for (const int64_t id : ids) {
    if (id < 0 || id > INT32_MAX) {
      params.fail("stop", fmt::format("token {} is outside 0 to {}", id, INT32_MAX));
    }
    command.stop.push_back(static_cast<int32_t>(id));
  }
  order.stops_at_end = !ids.empty();
}

void read_params(const Fields& body, uint64_t fallback_seed, SampleOrder& order) {
  api::Sample& command = order.command;
  const Fields params = body.object("sampling_params");
  command.max_tokens = params.integer_or("max_tokens", 0, 1, INT64_MAX / 2);
  const double temperature = params.number_or("temperature", 1.0);
  // Logits divided by less than a thousandth leave the range of numbers.
  if (temperature < 0 || temperature > 1e6 || (temperature > 0 && temperature < 1e-3)) {
    params.fail("temperature",
                fmt::format("got {}, wanted 0, or from 0.001 to 1000000", temperature));
  }
  command.temperature = static_cast<float>(temperature);
  const double top_p = params.number_or("top_p", 1.0);
  if (static_cast<float>(top_p) <= 0 || top_p > 1) {
    params.fail("top_p", fmt::format("got {}, wanted above 0 and at most 1", top_p));
  }
  command.top_p = static_cast<float>(top_p);
  command.top_k = std::max<int64_t>(0, params.integer_or("top_k", -1, -1, INT32_MAX));
  command.seed = params.maybe_bits("seed").value_or(fallback_seed);
  read_stop(params, order);
}

void read_logprobs(const Fields& body, api::Sample& command) {
  command.prompt_logprobs = body.boolean_or("prompt_logprobs", false);
  command.topk_prompt_logprobs = body.integer_or("topk_prompt_logprobs", 0, 0, kMaxTopk);
  command.topk_sample_logprobs = body.integer_or("topk_sample_logprobs", 0, 0, kMaxTopk);
  command.prompt_draws = body.integer_or("prompt_alt_tokens_k", 0, 0, kMaxTopk);
  if (!body.has("prompt_logprobs_last_n")) return;
  const auto prompt_size = static_cast<int64_t>(command.prompt.size());
  if (!command.prompt_logprobs) {
    body.fail("prompt_logprobs_last_n", "needs prompt_logprobs: true");
  }
  command.first_prompt_logprob =
      prompt_size - body.integer("prompt_logprobs_last_n", 1, prompt_size - 1);
}

// [P - 1, K], dense or CSR; the layout is the answer's too.
TensorParts read_targets(const Fields& body, api::Sample& command) {
  constexpr const char* kName = "target_prompt_logprobs";
  TensorParts parts;
  if (!body.has(kName)) return parts;
  const Fields tensor = body.object(kName);
  if (tensor.string("dtype") != "int64") tensor.fail("dtype", "wanted 'int64'");
  for (const int64_t id : tensor.integers("data")) {
    if (id < -1 || id > INT32_MAX) {
      tensor.fail("data", fmt::format("token {} is outside -1 to {}", id, INT32_MAX));
    }
    command.prompt_targets.ids.push_back(static_cast<int32_t>(id));
  }
  const std::vector<int32_t>& ids = command.prompt_targets.ids;
  if (std::none_of(ids.begin(), ids.end(), [](int32_t id) { return id >= 0; }))
    tensor.fail("data", "names no token");
  parts.shape = tensor.integers("shape");
  parts.is_sparse = tensor.has("sparse_crow_indices") || tensor.has("sparse_col_indices");
  if (parts.is_sparse) {
    parts.crow = tensor.integers("sparse_crow_indices");
    parts.col = tensor.integers("sparse_col_indices");
  }
  const auto rows = static_cast<int64_t>(command.prompt.size()) - 1;
  const TensorLayout layout =
      tensor_layout(parts, std::ssize(ids), fmt::format("asample: {}", kName),
                    {.rows = rows, .columns = kMaxTopk, .elements = INT32_MAX});
  if (layout.num_columns == 0 || layout.num_rows != rows) {
    tensor.fail("shape",
                fmt::format("wanted [{}, K]: a row for each prompt token but the first", rows));
  }
  command.prompt_targets.first = parts.crow;
  for (int64_t row = 0; !parts.is_sparse && row <= rows; ++row)
    command.prompt_targets.first.push_back(row * layout.num_columns);
  return parts;
}

[[noreturn]] void fail(const std::string& field, const std::string& what) {
  throw FieldFault(fmt::format("asample: {}: {}", field, what), field);
}

void check_ids(const std::string& field, const std::vector<int32_t>& ids, int32_t least,
               int64_t vocab_size) {
  for (const int32_t id : ids) {
    if (id < least || id >= vocab_size)
      fail(field, fmt::format("token {} is outside {} to {}", id, least, vocab_size - 1));
  }
}

void check_result_size(const api::Sample& command) {
  const double per_token = 8.0 + 8.0 * static_cast<double>(command.topk_sample_logprobs);
  const double per_position =
      4.0 + 8.0 * static_cast<double>(command.topk_prompt_logprobs + command.prompt_draws);
  const double bytes = static_cast<double>(command.num_samples) *
                           static_cast<double>(command.max_tokens) * per_token +
                       static_cast<double>(command.prompt.size()) * per_position;
  if (bytes <= kMaxResultBytes) return;
  fail("num_samples", fmt::format("the result could have {:.0f} bytes, the limit is {:.0f}; "
                                  "ask for fewer samples, tokens or top-k entries",
                                  bytes, kMaxResultBytes));
}

}  // namespace

SampleOrder read_sample(const Fields& body, uint64_t fallback_seed) {
  SampleOrder order;
  api::Sample& command = order.command;
  command.prompt = read_prompt(body);
  command.num_samples = body.integer_or("num_samples", 1, 1, kMaxSamples);
  read_params(body, fallback_seed, order);
  read_logprobs(body, command);
  order.targets = read_targets(body, command);
  order.record = body.boolean_or("record_stability_info", false);
  return order;
}

void fit_sample(const api::BaseInfo& base, SampleOrder& order) {
  api::Sample& command = order.command;
  const int64_t prompt = std::ssize(command.prompt);
  const int64_t left = base.max_context - prompt;
  if (command.max_tokens == 0) command.max_tokens = std::max<int64_t>(left, 1);
  if (const auto fault = api::over_context(prompt, command.max_tokens, base.max_context))
    fail(left < 1 ? "prompt" : "sampling_params.max_tokens", *fault);
  check_ids("prompt", command.prompt, 0, base.vocab_size);
  check_ids("sampling_params.stop", command.stop, 0, base.vocab_size);
  check_ids("target_prompt_logprobs.data", command.prompt_targets.ids, -1, base.vocab_size);
  if (order.stops_at_end)
    command.stop.insert(command.stop.end(), base.end_tokens.begin(), base.end_tokens.end());
  command.top_k = std::min(command.top_k, base.vocab_size);
  for (const auto& [field, count] :
       {std::pair("topk_prompt_logprobs", command.topk_prompt_logprobs),
        std::pair("topk_sample_logprobs", command.topk_sample_logprobs),
        std::pair("prompt_alt_tokens_k", command.prompt_draws)}) {
    if (count > base.vocab_size)
      fail(field, fmt::format("got {}, wanted 0 to {}", count, base.vocab_size));
  }
  check_result_size(command);
}

}  // namespace strata::server
