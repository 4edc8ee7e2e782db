// SPDX-License-Identifier: Apache-2.0
// How generate and chat choose tokens: what the command line says, else the model's
// generation_config.json, else the value that changes nothing; where neither has a temperature or a
// cut, temperature 0.7 and top-p 0.9. Loops over api::kSamplingOptions.
#pragma once
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/sampling_options.h"
#include "base/option_table.h"

namespace strata::apps {

struct SamplingChoices {
  // As api::kSamplingOptions; absent: the file's, else the neutral one.
  std::array<std::optional<double>, std::size(api::kSamplingOptions)> numbers = {};
  std::optional<int64_t> top_k = {};
  std::vector<api::LogitBias> logit_bias = {};

  // The value by a name that has a row.
  [[nodiscard]] std::optional<double>& value_of(std::string_view name);
};

// Their rows in a command's table; borrows `choices`.
void add_sampling_rows(OptionTable& table, SamplingChoices& choices);

// Puts what is chosen into a request; the rest of it stays.
void apply_choices(const SamplingChoices& choices, api::SampleRequest& request);

struct SamplingSettings {
  api::SampleRequest request = {};  // the options of the choice, and nothing else
  std::string taken = {};  // from generation_config.json, for people; empty: nothing was taken
  bool is_plain = false;   // nobody has a temperature or a cut
  [[nodiscard]] bool greedy() const { return request.temperature == 0.0f; }
};
SamplingSettings load_sampling_settings(const std::string& model, const SamplingChoices& choices);

// "temperature 0.6, top-k 20", of what is not at its neutral value, or "greedy".
std::string sampling_text(const api::SampleRequest& request);

}  // namespace strata::apps
