// SPDX-License-Identifier: Apache-2.0
// Source of the form: ollama's docs/modelfile.mdx and template/template.go (.System is all system
// turns, .Messages the turns).
#include "apps/export/modelfile.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/sampling_defaults.h"
#include "setup/text_stack.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

// Words that stand for turns while a template is taken apart.
constexpr const char* kSystem = "STRATASYSTEM";
constexpr const char* kUser = "STRATAUSER";
constexpr const char* kAnswer = "STRATAANSWER";
constexpr const char* kNext = "STRATANEXT";

using Turns = std::vector<std::pair<std::string, std::string>>;  // role and content

std::string render(const TextStack& text, const Turns& turns, bool to_answer) {
  json::array messages;
  for (const auto& [role, content] : turns)
    messages.push_back(json::object{{"role", role}, {"content", content}});
  return text.render(
      {.messages = json::serialize(messages), .vars = {}, .add_generation_prompt = to_answer});
}

// What stands between two words; nothing where they are not there in this order.
std::optional<std::string> text_between(const std::string& text, const std::string& first,
                                        const std::string& second) {
  const size_t begin = text.find(first);
  if (begin == std::string::npos) return std::nullopt;
  const size_t end = second.empty() ? text.size() : text.find(second, begin + first.size());
  if (end == std::string::npos) return std::nullopt;
  return text.substr(begin + first.size(), end - begin - first.size());
}

std::optional<std::string> without_prefix(std::optional<std::string> text,
                                          const std::string& prefix) {
  if (!text || !text->starts_with(prefix)) return std::nullopt;
  return text->substr(prefix.size());
}

// What a template writes around turns.
struct Pieces {
  std::string start;                        // of a conversation without a system turn
  std::string before_system, after_system;  // instead of it
  std::string before_user, after_user, before_answer, after_answer;
  std::string to_answer;

  [[nodiscard]] std::string write(const Turns& turns) const {
    std::string out;
    for (const auto& [role, content] : turns) {
      if (role == "system") {
        out = before_system + content + after_system;
      } else if (role == "user") {
        out += (out.empty() ? start : "") + before_user + content + after_user;
      } else {
        out += before_answer + content + after_answer;
      }
    }
    return out + to_answer;
  }
};

std::optional<Pieces> take_apart(const TextStack& text) {
  const Turns user = {{"user", kUser}};
  Turns two = {{"user", kUser}, {"assistant", kAnswer}};
  const std::string one = render(text, user, false), answered = render(text, two, false);
  two.emplace_back("user", kNext);
  const std::string three = render(text, two, false);
  const std::string with_system = render(text, {{"system", kSystem}, {"user", kUser}}, false);
  const std::string asking = render(text, user, true);
  const auto after_user = text_between(one, kUser, "");
  const auto after_answer = text_between(answered, kAnswer, "");
  if (!after_user || !after_answer || !asking.starts_with(one)) return std::nullopt;
  const auto before_answer = without_prefix(text_between(answered, kUser, kAnswer), *after_user);
  const auto before_user = without_prefix(text_between(three, kAnswer, kNext), *after_answer);
  const auto around = text_between(with_system, kSystem, kUser);
  if (!before_answer || !before_user || !around || !around->ends_with(*before_user)) {
    return std::nullopt;
  }
  const std::string begin = one.substr(0, one.find(kUser));
  if (!begin.ends_with(*before_user)) return std::nullopt;
  return Pieces{.start = begin.substr(0, begin.size() - before_user->size()),
                .before_system = with_system.substr(0, with_system.find(kSystem)),
                .after_system = around->substr(0, around->size() - before_user->size()),
                .before_user = *before_user,
                .after_user = *after_user,
                .before_answer = *before_answer,
                .after_answer = *after_answer,
                .to_answer = asking.substr(one.size())};
}

bool writes_alike(const TextStack& text, const Pieces& pieces) {
  const Turns without = {{"user", "One?"},
                         {"assistant", "Two."},
                         {"user", "Three?"},
                         {"assistant", "Four."},
                         {"user", "Five?"}};
  Turns with = without;
  with.insert(with.begin(), {"system", "Be brief."});
  const auto is_alike = [&](const Turns& turns) {
    return pieces.write(turns) == render(text, turns, true);
  };
  return is_alike({{"user", "One?"}}) && is_alike(without) && is_alike(with);
}

// llama.cpp puts a begin-of-text before what it reads, where the tokenizer does.
void drop_begin_token(const TextStack& text, Pieces& pieces) {
  const std::vector<int32_t> ids = text.tokenizer().encode("a", /*add_special=*/true);
  if (ids.empty() || !text.tokenizer().is_special(ids.front())) return;
  const std::string begin = text.tokenizer().id_to_token(ids.front()).value_or("");
  for (std::string* start : {&pieces.start, &pieces.before_system}) {
    if (start->starts_with(begin)) start->erase(0, begin.size());
  }
}

std::optional<Pieces> find_pieces(const TextStack& text) {
  if (!text.has_template()) return std::nullopt;
  std::optional<Pieces> pieces;
  try {
    pieces = take_apart(text);
    if (pieces && !writes_alike(text, *pieces)) return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // it refuses a system turn, or two questions
  }
  if (pieces) drop_begin_token(text, *pieces);
  return pieces;
}

// Text as a Go template has it between its actions.
std::string escaped(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool opens = text.compare(i, 2, "{{") == 0;
    out += opens ? "{{ \"{{\" }}" : std::string(1, text[i]);
    if (opens) ++i;
  }
  return out;
}

std::string template_text(const Pieces& p) {
  std::string out =
      "{{ if .System }}" + escaped(p.before_system) + "{{ .System }}" + escaped(p.after_system);
  if (!p.start.empty()) out += "{{ else }}" + escaped(p.start);
  out += "{{ end }}{{ range .Messages }}{{ if eq .Role \"user\" }}" + escaped(p.before_user) +
         "{{ .Content }}" + escaped(p.after_user);
  out += "{{ else if eq .Role \"assistant\" }}" + escaped(p.before_answer) + "{{ .Content }}" +
         escaped(p.after_answer);
  return out + "{{ end }}{{ end }}" + escaped(p.to_answer);
}

std::string template_lines(const TextStack& text) {
  constexpr std::string_view kQuote = "\"\"\"";
  const std::optional<Pieces> pieces = find_pieces(text);
  const std::string lines = pieces ? template_text(*pieces) : "";
  if (lines.empty() || lines.find(kQuote) != std::string::npos) {
    return "# No TEMPLATE: this model's is none that ollama's form can say; ollama takes the one\n"
           "# that it knows by the template in the file.\n";
  }
  return fmt::format("TEMPLATE {}{}{}\n", kQuote, lines, kQuote);
}

std::string parameter_lines(const ModelTexts& texts) {
  const data::SamplingDefaults sampling = data::load_sampling_defaults(texts);
  std::string out;
  const auto add = [&](std::string_view name, const auto& value) {
    if (value) out += fmt::format("PARAMETER {} {}\n", name, *value);
  };
  add("temperature", sampling.greedy ? std::optional(0.0) : sampling.temperature);
  add("top_k", sampling.top_k);
  add("top_p", sampling.top_p);
  add("min_p", sampling.min_p);
  add("repeat_penalty", sampling.repetition_penalty);
  if (sampling.repetition_penalty) out += "PARAMETER repeat_last_n -1\n";
  return out;
}

std::string stop_lines(const TextStack& text) {
  std::vector<int32_t> ids = text.end_tokens().stop;
  if (text.has_template()) {
    const std::optional<int32_t> end = text.find_turn_end_token();
    if (end && std::ranges::find(ids, *end) == ids.end()) ids.push_back(*end);
  }
  std::string out;
  for (const int32_t id : ids) {
    const std::optional<std::string> token = text.tokenizer().id_to_token(id);
    if (token) out += fmt::format("PARAMETER stop {}\n", json::serialize(json::string(*token)));
  }
  return out;
}

}  // namespace

std::string make_modelfile(const ModelTexts& texts, const std::string& gguf) {
  const TextStack text(texts);
  return fmt::format("FROM {}\n{}{}{}", gguf, template_lines(text), parameter_lines(texts),
                     stop_lines(text));
}

}  // namespace strata::apps
