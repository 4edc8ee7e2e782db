// SPDX-License-Identifier: Apache-2.0
// Source of the keys and their types: gguf-py's constants.py and gguf_writer.py; of their meaning:
// llama.cpp's common/sampling.cpp.
#include "checkpoint/gguf/sampling.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "text/json_field.h"

namespace strata {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxBytes = int64_t{64} << 20;
constexpr std::string_view kTemperature = "general.sampling.temp";
constexpr std::string_view kTopK = "general.sampling.top_k";
constexpr std::string_view kPenalty = "general.sampling.penalty_repeat";
constexpr std::string_view kPenaltyTokens = "general.sampling.penalty_last_n";

struct Row {
  std::string_view member, key;
};
constexpr Row kNumbers[] = {{"temperature", kTemperature},
                            {"top_p", "general.sampling.top_p"},
                            {"min_p", "general.sampling.min_p"},
                            {"repetition_penalty", kPenalty}};

[[noreturn]] void refuse(const std::string& where, std::string_view member, const json::value& got,
                         std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}: got {}, want {}", where, member, json::serialize(got), wanted));
}

const json::value* find_value(const json::object& object, std::string_view member) {
  const json::value* value = object.if_contains(member);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<double> read_number(const std::string& where, const json::object& object,
                                  std::string_view member) {
  const json::value* value = find_value(object, member);
  if (value == nullptr) return std::nullopt;
  json::error_code error;
  const auto number = value->to_number<double>(error);
  if (error || std::fabs(number) > std::numeric_limits<float>::max())
    refuse(where, member, *value, "a number");
  return number;
}

bool is_greedy(const std::string& where, const json::object& object) {
  const json::value* samples = find_value(object, "do_sample");
  if (samples == nullptr) return false;
  if (!samples->is_bool()) refuse(where, "do_sample", *samples, "true or false");
  return !samples->get_bool();
}

void add_top_k(const std::string& where, const json::object& object, GgufHeader& header) {
  const std::optional<double> top_k = read_number(where, object, "top_k");
  if (!top_k) return;
  if (std::floor(*top_k) != *top_k || std::fabs(*top_k) > std::numeric_limits<int32_t>::max())
    refuse(where, "top_k", object.at("top_k"), "a whole number");
  header.add_signed(kTopK, static_cast<int32_t>(*top_k));
}

}  // namespace

void add_sampling(const ModelTexts& texts, GgufHeader& header) {
  constexpr std::string_view kFile = "generation_config.json";
  const std::optional<std::string> text = texts.find(kFile, kMaxBytes);
  if (!text) return;
  const std::string where = texts.where(kFile);
  const json::object object = text::parse_json_object(*text, where);
  const bool greedy = is_greedy(where, object);
  add_top_k(where, object, header);
  for (const Row& row : kNumbers) {
    std::optional<double> value = read_number(where, object, row.member);
    if (greedy && row.key == kTemperature) value = 0.0;
    if (value) header.add_number(row.key, *value);
    // It counts the prompt and the whole answer; llama.cpp by itself takes the last 64 tokens.
    if (value && row.key == kPenalty) header.add_signed(kPenaltyTokens, -1);
  }
}

std::string gguf_sampling_members(const GgufKeys& keys) {
  std::string out;
  if (keys.has(kTopK)) out += fmt::format(", \"top_k\": {}", keys.integer(kTopK));
  for (const Row& row : kNumbers) {
    if (!keys.has(row.key)) continue;
    const double value = keys.number(row.key);
    const bool greedy = row.key == kTemperature && value <= 0.0;
    const bool is_off = row.key == kPenalty && keys.integer(kPenaltyTokens, -1) == 0;
    if (greedy) {
      out += ", \"do_sample\": false";
    } else if (!is_off) {
      out += fmt::format(", \"{}\": {}", row.member, static_cast<float>(value));
    }
  }
  return out;
}

}  // namespace strata
