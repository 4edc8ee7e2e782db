// SPDX-License-Identifier: Apache-2.0
#include "server/protocol/sample_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "server/protocol/model_input.h"

namespace strata::server {
namespace {

constexpr int64_t kMaxSamples = 1024;
constexpr int64_t kMaxTopk = 1024;
constexpr size_t kMaxStopIds = 1024;
constexpr size_t kMaxStopTexts = 64;
constexpr size_t kMaxStopText = 1024;
constexpr double kMaxResultBytes = 256.0 * (1 << 20);

std::vector<int32_t> read_prompt(const Fields& body, const api::BaseInfo& base) {
  std::vector<int32_t> prompt =
      read_model_input(body.object("prompt"), 0, static_cast<int32_t>(base.vocab_size - 1));
  if (prompt.empty()) body.fail("prompt", "the prompt is empty");
  return prompt;
}

void read_stop(const Fields& params, const api::BaseInfo& base, api::Sample& command) {
  if (!params.has("stop")) {
    command.stop = base.end_tokens;
    return;
  }
  if (params.is_string("stop")) {
    command.stop_texts.push_back(params.string("stop"));
  } else if (params.is_array_of_strings("stop")) {
    command.stop_texts = params.strings("stop");
  } else {
    const std::vector<int64_t> ids = params.integers("stop");
    if (ids.size() > kMaxStopIds) {
      params.fail("stop", fmt::format("has {} ids, the limit is {}", ids.size(), kMaxStopIds));
    }
    for (const int64_t id : ids) {
      if (id < 0 || id >= base.vocab_size) {
        params.fail("stop", fmt::format("token {} is outside 0 to {}", id, base.vocab_size - 1));
      }
      command.stop.push_back(static_cast<int32_t>(id));
    }
    if (ids.empty()) return;  // nothing stops it, the end tokens neither
  }
  if (command.stop_texts.size() > kMaxStopTexts) {
    params.fail("stop", fmt::format("has {} strings, the limit is {}", command.stop_texts.size(),
                                    kMaxStopTexts));
  }
  for (const std::string& text : command.stop_texts) {
    if (text.empty() || text.size() > kMaxStopText) {
      params.fail("stop",
                  fmt::format("a string has {} bytes, wanted 1 to {}", text.size(), kMaxStopText));
    }
  }
  command.stop.insert(command.stop.end(), base.end_tokens.begin(), base.end_tokens.end());
}

void read_params(const Fields& body, const api::BaseInfo& base, uint64_t fallback_seed,
                 api::Sample& command) {
  const auto prompt_size = static_cast<int64_t>(command.prompt.size());
  if (prompt_size >= base.max_context) {
    body.fail("prompt", fmt::format("Prompt length exceeds the model's context window: {} > {}",
                                    prompt_size, base.max_context - 1));
  }
  const Fields params = body.object("sampling_params");
  command.max_tokens =
      params.integer_or("max_tokens", base.max_context - prompt_size, 1, INT64_MAX / 2);
  if (prompt_size + command.max_tokens > base.max_context) {
    params.fail("max_tokens",
                fmt::format("Prompt length plus max_tokens exceeds the model's context window: {} "
                            "+ {} > {}",
                            prompt_size, command.max_tokens, base.max_context));
  }
  const double temperature = params.number_or("temperature", 1.0);
  // Logits divided by less than a thousandth leave the range of numbers.
  if (temperature < 0 || temperature > 1e6 || (temperature > 0 && temperature < 1e-3)) {
    params.fail("temperature",
                fmt::format("got {}, wanted 0, or from 0.001 to 1000000", temperature));
  }
  command.temperature = static_cast<float>(temperature);
  const double top_p = params.number_or("top_p", 1.0);
  if (top_p <= 0 || top_p > 1) {
    params.fail("top_p", fmt::format("got {}, wanted above 0 and at most 1", top_p));
  }
  command.top_p = static_cast<float>(top_p);
  command.top_k = std::max<int64_t>(0, params.integer_or("top_k", -1, -1, INT32_MAX));
  command.top_k = std::min(command.top_k, base.vocab_size);
  command.seed = params.maybe_bits("seed").value_or(fallback_seed);
  read_stop(params, base, command);
}

void read_logprobs(const Fields& body, const api::BaseInfo& base, api::Sample& command) {
  const int64_t max_topk = std::min(base.vocab_size, kMaxTopk);
  command.prompt_logprobs = body.boolean_or("prompt_logprobs", false);
  command.topk_prompt_logprobs = body.integer_or("topk_prompt_logprobs", 0, 0, max_topk);
  command.topk_sample_logprobs = body.integer_or("topk_sample_logprobs", 0, 0, max_topk);
  command.prompt_draws = body.integer_or("prompt_alt_tokens_k", 0, 0, max_topk);
  if (!body.has("prompt_logprobs_last_n")) return;
  const auto prompt_size = static_cast<int64_t>(command.prompt.size());
  if (!command.prompt_logprobs) {
    body.fail("prompt_logprobs_last_n", "needs prompt_logprobs: true");
  }
  command.first_prompt_logprob =
      prompt_size - body.integer("prompt_logprobs_last_n", 1, prompt_size - 1);
}

// [P - 1, K], dense or CSR; the layout is the answer's too.
TensorParts read_targets(const Fields& body, const api::BaseInfo& base, api::Sample& command) {
  constexpr const char* kName = "target_prompt_logprobs";
  TensorParts parts;
  if (!body.has(kName)) return parts;
  const Fields tensor = body.object(kName);
  if (tensor.string("dtype") != "int64") tensor.fail("dtype", "wanted 'int64'");
  for (const int64_t id : tensor.integers("data")) {
    if (id < -1 || id >= base.vocab_size) {
      tensor.fail("data", fmt::format("token {} is outside -1 to {}", id, base.vocab_size - 1));
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

void check_result_size(const Fields& body, const api::Sample& command) {
  const double per_token = 8.0 + 8.0 * static_cast<double>(command.topk_sample_logprobs);
  const double per_position =
      4.0 + 8.0 * static_cast<double>(command.topk_prompt_logprobs + command.prompt_draws);
  const double bytes = static_cast<double>(command.num_samples) *
                           static_cast<double>(command.max_tokens) * per_token +
                       static_cast<double>(command.prompt.size()) * per_position;
  if (bytes <= kMaxResultBytes) return;
  body.fail("num_samples", fmt::format("the result could have {:.0f} bytes, the limit is {:.0f}; "
                                       "ask for fewer samples, tokens or top-k entries",
                                       bytes, kMaxResultBytes));
}

}  // namespace

SampleOrder read_sample(const Fields& body, const api::BaseInfo& base, uint64_t fallback_seed) {
  SampleOrder order;
  api::Sample& command = order.command;
  command.prompt = read_prompt(body, base);
  command.num_samples = body.integer_or("num_samples", 1, 1, kMaxSamples);
  read_params(body, base, fallback_seed, command);
  read_logprobs(body, base, command);
  order.targets = read_targets(body, base, command);
  check_result_size(body, command);
  order.record = body.boolean_or("record_stability_info", false);
  return order;
}

}  // namespace strata::server
