// SPDX-License-Identifier: Apache-2.0
#include "data/sampling_defaults.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <cmath>

#include "base/error.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr double kMostTemperature = 1e6;
constexpr double kMostTopK = 1e15;

[[noreturn]] void refuse_value(const std::string& path, const char* key, const json::value& got,
                               const std::string& wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}: got {}, want {}", path, key, json::serialize(got), wanted));
}

// The key's value; null where it says nothing.
const json::value* find_value(const json::object& object, const char* key) {
  const json::value* value = object.if_contains(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

struct Range {
  double least, most;
  std::string wanted;
};

std::optional<double> read_number(const std::string& path, const json::object& object,
                                  const char* key, const Range& range) {
  const json::value* value = find_value(object, key);
  if (value == nullptr) return std::nullopt;
  json::error_code error;
  const auto number = value->to_number<double>(error);
  if (error || !(number >= range.least && number <= range.most))
    refuse_value(path, key, *value, range.wanted);
  return number;
}

std::optional<int64_t> read_integer(const std::string& path, const json::object& object,
                                    const char* key, const Range& range) {
  const std::optional<double> value = read_number(path, object, key, range);
  if (!value) return std::nullopt;
  if (std::floor(*value) != *value) refuse_value(path, key, object.at(key), range.wanted);
  return static_cast<int64_t>(*value);
}

// Those that a range is all there is to say of.
struct NumberKey {
  const char* name;
  std::optional<double> SamplingDefaults::* value;
  bool NamedSampling::* named;
  double least, most;
  const char* wanted;
};
constexpr NumberKey kNumberKeys[] = {
    {"top_p", &SamplingDefaults::top_p, &NamedSampling::top_p, 1e-300, 1,
     "a number above 0 and at most 1; or give --top-p"},
    {"min_p", &SamplingDefaults::min_p, &NamedSampling::min_p, 0, 1,
     "a number of 0 to 1; or give --min-p"},
    {"repetition_penalty", &SamplingDefaults::repetition_penalty,
     &NamedSampling::repetition_penalty, 0.01, 100,
     "a number of 0.01 to 100; or give --repetition-penalty"},
};

// And whether that, or do_sample, is greedy.
void read_temperature_and_greedy(const std::string& path, const json::object& object,
                                 SamplingDefaults& out) {
  const json::value* samples = find_value(object, "do_sample");
  if (samples != nullptr && !samples->is_bool())
    refuse_value(path, "do_sample", *samples, "true or false; or give --temperature");
  out.temperature =
      read_number(path, object, "temperature",
                  {0, kMostTemperature, "a number of 0 (greedy) or more; or give --temperature"});
  out.greedy = (samples != nullptr && !samples->get_bool()) || out.temperature == 0.0;
}

// 0 where the file has -1.
std::optional<int64_t> read_top_k(const std::string& path, const json::object& object) {
  const std::optional<int64_t> top_k = read_integer(
      path, object, "top_k", {-1, kMostTopK, "a whole number of 0 (off) or more; or give --top-k"});
  return top_k == -1 ? 0 : top_k;
}

}  // namespace

SamplingDefaults load_sampling_defaults(const ModelTexts& texts, const NamedSampling& named) {
  SamplingDefaults out;
  constexpr std::string_view kName = "generation_config.json";
  const std::string path = texts.where(kName);
  const std::optional<std::string> text = texts.find(kName, kMaxConfigBytes);
  if (!text) return out;
  const json::object object = text::parse_json_object(*text, path);
  if (!named.temperature) read_temperature_and_greedy(path, object, out);
  if (!named.top_k) out.top_k = read_top_k(path, object);
  for (const NumberKey& key : kNumberKeys) {
    if (!(named.*key.named))
      out.*key.value = read_number(path, object, key.name, {key.least, key.most, key.wanted});
  }
  return out;
}

}  // namespace strata::data
