// SPDX-License-Identifier: Apache-2.0
#include "apps/generate/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "checkpoint/source.h"
#include "data/sampling_defaults.h"

namespace strata::apps {
namespace {

constexpr double kMostTemperature = 1e6;
constexpr double kLeastAbove = 1e-300;  // of a range that excludes 0
constexpr const char* kBias = "logit-bias";

// Where nobody says how to draw.
double plain_value(const api::SamplingOption& option) {
  constexpr double kTemperature = 0.7, kTopP = 0.9;  // as the programs of others have it
  if (option.name == "temperature") return kTemperature;
  return option.name == "top_p" ? kTopP : option.neutral;
}

std::string dashed(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

[[noreturn]] void refuse_bias(std::string_view got) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("--{}: got '{}', want ID:VALUE,... with values of {} to {}", kBias, got,
                          -api::kMostLogitBias, api::kMostLogitBias));
}

template <typename T>
T parse_bias_number(std::string_view text, std::string_view pair) {
  T value = {};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) refuse_bias(pair);
  return value;
}

// "ID:VALUE"
api::LogitBias parse_logit_bias(std::string_view pair) {
  const size_t colon = pair.find(':');
  if (colon == std::string_view::npos) refuse_bias(pair);
  const auto add = parse_bias_number<float>(pair.substr(colon + 1), pair);
  if (!(std::abs(add) <= api::kMostLogitBias)) refuse_bias(pair);
  return {.token = parse_bias_number<int32_t>(pair.substr(0, colon), pair), .add = add};
}

// "ID:VALUE,ID:VALUE"; ids are held against the vocabulary when the model is there.
std::vector<api::LogitBias> parse_logit_biases(std::string_view text) {
  std::vector<api::LogitBias> out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    out.push_back(parse_logit_bias(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return out;
}

std::string logit_biases_text(const std::vector<api::LogitBias>& biases) {
  std::string text;
  for (const api::LogitBias& bias : biases)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", bias.token, bias.add);
  return text;
}

void add_bias_row(OptionTable& table, std::vector<api::LogitBias>& field) {
  auto* at = &field;
  table.add({.name = kBias,
             .unit = "ID:VALUE,...",
             .help = "added to the logits of these tokens; -100 bans one",
             .set = [at](const std::string& text) { *at = parse_logit_biases(text); },
             .text = [at] { return logit_biases_text(*at); }});
}

struct FileNumber {
  std::string_view name;
  std::optional<double> data::SamplingDefaults::* value;
  bool data::NamedSampling::* named;
};
constexpr FileNumber kFileNumbers[] = {
    {"temperature", &data::SamplingDefaults::temperature, &data::NamedSampling::temperature},
    {"top_p", &data::SamplingDefaults::top_p, &data::NamedSampling::top_p},
    {"min_p", &data::SamplingDefaults::min_p, &data::NamedSampling::min_p},
    {"repetition_penalty", &data::SamplingDefaults::repetition_penalty,
     &data::NamedSampling::repetition_penalty},
};

data::SamplingDefaults load_file_defaults(const std::string& model, SamplingChoices choices) {
  data::NamedSampling named = {.top_k = choices.top_k.has_value()};
  for (const FileNumber& number : kFileNumbers)
    named.*number.named = choices.value_of(number.name).has_value();
  return data::load_sampling_defaults(open_texts(model), named);
}

std::optional<double> find_file_default(const data::SamplingDefaults& file, std::string_view name) {
  for (const FileNumber& number : kFileNumbers) {
    if (number.name == name) return file.*number.value;
  }
  return std::nullopt;
}

// Whether neither the model's file nor the caller has a temperature or a cut.
bool names_no_draw(const data::SamplingDefaults& file, const SamplingChoices& choices) {
  if (file.greedy || file.top_k || choices.top_k) return false;
  for (size_t i = 0; i < choices.numbers.size(); ++i) {
    const api::SamplingOption& option = api::kSamplingOptions[i];
    const bool is_draw = option.name == "temperature" || option.is_cut;
    if (is_draw && (choices.numbers[i] || find_file_default(file, option.name))) return false;
  }
  return true;
}

// What of the file counts, for people.
std::string used_defaults_text(const data::SamplingDefaults& file, bool greedy) {
  std::string text;
  if (file.greedy)
    text = file.temperature == 0.0 ? "temperature 0 (greedy)" : "do_sample false (greedy)";
  const auto add = [&](std::string_view name, const auto& value) {
    if (value) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, *value);
  };
  for (const api::SamplingOption& option : api::kSamplingOptions) {
    const bool is_temperature = option.name == "temperature";
    if (greedy && (is_temperature || option.is_cut)) continue;
    add(option.name, find_file_default(file, option.name));
    if (is_temperature) add("top_k", file.top_k);
  }
  return text;
}

}  // namespace

std::optional<double>& SamplingChoices::value_of(std::string_view name) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (api::kSamplingOptions[i].name == name) return numbers[i];
  }
  CHECK(false, name);
  return numbers[0];
}

void add_sampling_rows(OptionTable& table, SamplingChoices& choices) {
  for (size_t i = 0; i < choices.numbers.size(); ++i) {
    const api::SamplingOption& option = api::kSamplingOptions[i];
    const double least = option.excludes_least ? kLeastAbove : option.least;
    const double most = std::min<double>(option.most, kMostTemperature);
    OptionRow& row =
        table.number(dashed(option.name), choices.numbers[i],
                     {least, most, std::string(option.wanted)}, std::string(option.help));
    const std::string otherwise = fmt::format("{}", plain_value(option));
    row.by_default(option.in_generation_config ? "generation_config.json's, else " + otherwise
                                               : otherwise);
  }
  table.integer("top-k", choices.top_k, {0, INT64_MAX, "0 (off) or more"}, "0: off")
      .by_default("generation_config.json's, else 0");
  add_bias_row(table, choices.logit_bias);
}

void apply_choices(const SamplingChoices& choices, api::SampleRequest& request) {
  for (size_t i = 0; i < choices.numbers.size(); ++i) {
    if (!choices.numbers[i]) continue;
    request.*api::kSamplingOptions[i].field = static_cast<float>(*choices.numbers[i]);
  }
  if (choices.top_k) request.top_k = *choices.top_k;
  if (!choices.logit_bias.empty()) request.logit_bias = choices.logit_bias;
}

SamplingSettings load_sampling_settings(const std::string& model, const SamplingChoices& choices) {
  const data::SamplingDefaults file = load_file_defaults(model, choices);
  SamplingSettings out;
  out.is_plain = names_no_draw(file, choices);
  for (const api::SamplingOption& option : api::kSamplingOptions) {
    const double otherwise = out.is_plain ? plain_value(option) : option.neutral;
    out.request.*option.field =
        static_cast<float>(find_file_default(file, option.name).value_or(otherwise));
  }
  if (file.greedy) out.request.temperature = 0.0f;
  out.request.top_k = file.top_k.value_or(0);
  apply_choices(choices, out.request);
  out.taken = used_defaults_text(file, out.greedy());
  return out;
}

std::string sampling_text(const api::SampleRequest& request) {
  const bool greedy = request.temperature == 0.0f;
  std::string out = greedy ? "greedy" : fmt::format("temperature {}", request.temperature);
  if (!greedy && request.top_k != 0) out += fmt::format(", top-k {}", request.top_k);
  for (const api::SamplingOption& option : api::kSamplingOptions) {
    const float value = request.*option.field;
    if (option.name == "temperature" || value == option.neutral || (greedy && option.is_cut))
      continue;
    out += fmt::format(", {} {}", dashed(option.name), value);
  }
  if (!request.logit_bias.empty())
    out += fmt::format(", bias of {} tokens", request.logit_bias.size());
  return out;
}

}  // namespace strata::apps
