// SPDX-License-Identifier: Apache-2.0
#include "reward/reward.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <tuple>
#include <utility>

#include "base/ascii.h"
#include "base/error.h"
#include "base/files.h"
#include "base/function_ref.h"
#include "base/option_values.h"
#include "structured/json_schema.h"
#include "text/json_field.h"

namespace strata::reward {
namespace {

namespace json = boost::json;

constexpr std::string_view kExact = "exact:", kRegex = "regex:", kSchema = "json-schema:";
constexpr int64_t kMostWorkers = 256;

// Where {FIELD} begins at or behind `from`, and its name; npos: nowhere. What repeats a part of a
// pattern, {3}, begins with a digit.
std::pair<size_t, std::string> find_field(std::string_view pattern, size_t from) {
  const auto is_word = [](char c) { return digit_value(c) < 36 || c == '_'; };
  for (size_t at = pattern.find('{', from); at != std::string_view::npos;
       at = pattern.find('{', at + 1)) {
    const size_t close = pattern.find('}', at);
    if (close == std::string_view::npos) break;
    const std::string_view name = pattern.substr(at + 1, close - at - 1);
    if (!name.empty() && digit_value(name.front()) >= 10 && std::ranges::all_of(name, is_word))
      return {at, std::string(name)};
  }
  return {std::string_view::npos, {}};
}

// That matches the text itself.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view(R"(\.^$*+?{}[]|()-)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// The pattern with a text in place of each {FIELD}.
std::string with_fields(std::string_view pattern,
                        FunctionRef<std::string(const std::string&)> text_of) {
  std::string out;
  size_t from = 0;
  for (auto [at, name] = find_field(pattern, 0); at != std::string_view::npos;
       std::tie(at, name) = find_field(pattern, from)) {
    out += std::string(pattern.substr(from, at - from)) + escaped(text_of(name));
    from = at + name.size() + 2;
  }
  return out + std::string(pattern.substr(from));
}

json::object parse_record(std::string_view record) {
  return text::parse_json_object(record, "the record");
}

// What is wrong with a field that is to be a text, a number or a truth value; empty: nothing.
std::string find_field_fault(const json::object& record, const std::string& name) {
  const json::value* field = record.if_contains(name);
  if (field != nullptr && (field->is_string() || field->is_number() || field->is_bool())) return {};
  return fmt::format("--reward: the record has {} '{}', want a text or a number there",
                     field == nullptr ? "no field" : "no text in", name);
}

// A field's text without the white space around it; what is no text is as JSON writes it.
std::string field_text(const json::object& record, const std::string& name) {
  const json::value& field = record.at(name);
  if (!field.is_string()) return json::serialize(field);
  return std::string(trimmed(std::string_view(field.get_string())));
}

text::Regex compile(const std::string& pattern) {
  return {pattern, "--reward", text::Regex::Syntax::kPython};
}

}  // namespace

OptionRow& add_reward_options(OptionTable& table, RewardOptions& options) {
  OptionRow& row =
      table
          .text("reward", options.reward,
                "how good an answer is: a command that reads lines of JSON and writes numbers, "
                "exact:FIELD, regex:PATTERN or json-schema:FILE (docs/rewards.md)")
          .in("CMD");
  table.integer("reward-workers", options.workers, {1, kMostWorkers, "1 to 256"},
                "processes that run the command of --reward");
  std::string* timeout = &options.timeout;
  table.text("reward-timeout", options.timeout, "time (30s, 5m) that the command has for an answer")
      .in("TIME")
      .check = [timeout] { parse_duration("reward-timeout", *timeout); };
  return row;
}

std::string make_line(std::string_view record, std::string_view completion) {
  const json::object given = parse_record(record);
  json::object line;
  if (const json::value* prompt = given.if_contains("prompt")) {
    line["prompt"] = *prompt;
  } else if (const json::value* messages = given.if_contains("messages")) {
    json::array turns = messages->as_array();
    const json::object* last = turns.empty() ? nullptr : turns.back().if_object();
    const json::value* role = last == nullptr ? nullptr : last->if_contains("role");
    if (role != nullptr && *role == "assistant") turns.pop_back();
    line["prompt"] = std::move(turns);
  }
  line["completion"] = json::string_view(completion.data(), completion.size());
  for (const auto& [name, value] : given) {
    if (!line.contains(name)) line[name] = value;
  }
  return json::serialize(line);
}

Reward::Reward(const RewardOptions& options, const std::string& log, const AnswerTokens& tokens)
    : tokens_(tokens) {
  const std::string& text = options.reward;
  if (text.starts_with(kExact)) {
    kind_ = Kind::kExact;
    rule_ = text.substr(kExact.size());
    fields_ = {rule_};
  } else if (text.starts_with(kSchema)) {
    kind_ = Kind::kSchema;
    rule_ = text.substr(kSchema.size());
    int64_t num_tokens = tokens_.tokenizer.vocab_size();
    for (const int32_t end : tokens_.ends) num_tokens = std::max<int64_t>(num_tokens, end + 1);
    grammar_.emplace(structured::compile_grammar(
        structured::Vocabulary(tokens_.tokenizer, num_tokens),
        {.text = read_file(rule_, structured::kMaxSchemaBytes)}, "--reward " + text));
  } else if (text.starts_with(kRegex)) {
    kind_ = Kind::kRegex;
    rule_ = text.substr(kRegex.size());
    for (auto [at, name] = find_field(rule_, 0); at != std::string::npos;
         std::tie(at, name) = find_field(rule_, at + 1))
      fields_.push_back(name);
    if (fields_.empty()) {
      regex_.emplace(compile(rule_));
    } else {
      static_cast<void>(compile(with_fields(rule_, [](const std::string&) { return "x"; })));
    }
  } else {
    workers_.emplace(
        WorkerOptions{.command = text,
                      .count = options.workers,
                      .timeout_seconds = parse_duration("reward-timeout", options.timeout),
                      .log = log});
  }
  if (kind_ != Kind::kCommand && rule_.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--reward {}: want a {} behind the colon", text,
                            kind_ == Kind::kExact ? "field of the data" : "pattern"));
  }
}

std::string Reward::find_fault(std::string_view record) const {
  if (fields_.empty()) return {};
  const json::object object = parse_record(record);
  for (const std::string& field : fields_) {
    const std::string fault = find_field_fault(object, field);
    if (!fault.empty()) return fault;
  }
  return {};
}

bool Reward::fits_schema(std::string_view completion) const {
  structured::Matcher matcher = grammar_->start(tokens_.ends);
  for (const int32_t id : tokens_.tokenizer.encode(std::string(trimmed(completion)))) {
    if (!matcher.accept(id)) return false;
  }
  return matcher.accept(tokens_.ends.front());
}

void Reward::submit(size_t id, std::string_view record, std::string_view completion) {
  if (kind_ == Kind::kCommand) return workers_->submit(id, make_line(record, completion));
  if (kind_ == Kind::kRegex) return rated_.push_back(rate_by_pattern(id, record, completion));
  const bool is_it = kind_ == Kind::kSchema
                         ? fits_schema(completion)
                         : trimmed(completion) == field_text(parse_record(record), rule_);
  rated_.push_back({.id = id, .value = is_it ? 1.0 : 0.0});
}

Rated Reward::rate_by_pattern(size_t id, std::string_view record,
                              std::string_view completion) const {
  std::string pattern;
  if (!regex_) {
    const json::object object = parse_record(record);
    pattern = with_fields(rule_, [&](const std::string& name) { return field_text(object, name); });
  }
  int64_t steps = text::Regex::steps_for(std::ssize(completion));
  const auto stop_at_first = [](size_t, size_t) { return false; };
  try {
    const bool is_found = regex_ ? !regex_->find_while(completion, stop_at_first, steps)
                                 : !compile(pattern).find_while(completion, stop_at_first, steps);
    return {.id = id, .value = is_found ? 1.0 : 0.0};
  } catch (const Error& error) {
    return {.id = id, .fault = error.what()};
  }
}

void Reward::run(double seconds) {
  if (workers_) workers_->run(seconds);
}

std::vector<Rated> Reward::take_rated() {
  return workers_ ? workers_->take_rated() : std::exchange(rated_, {});
}

}  // namespace strata::reward
