// SPDX-License-Identifier: Apache-2.0
#include "data/answer_spans.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace strata::data {
namespace {

namespace json = boost::json;

size_t common_prefix(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end - a.begin());
}

size_t common_suffix(std::string_view a, std::string_view b) {
  const auto [end, other] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<size_t>(end - a.rbegin());
}

// How far the text has what was wanted. Where it goes on in another way, up to the last mark or
// line that it has whole: <tool_call> does not begin with what it shares with <think>.
size_t agreement(std::string_view text, std::string_view wanted) {
  const size_t size = common_prefix(text, wanted);
  if (size == wanted.size()) return size;
  return wanted.substr(0, size).find_last_of(">]\n") + 1;
}

// What follows the last place of a text; nothing where it is not there.
std::optional<std::string_view> behind(std::string_view text, std::string_view what) {
  const size_t at = text.rfind(what);
  if (at == std::string_view::npos) return std::nullopt;
  return text.substr(at + what.size());
}

void append_to_content(json::object& message, const std::string& more) {
  json::value& content = message["content"];
  std::string text = content.is_string() ? std::string(content.get_string()) : "";
  content = text + more;
}

// Before the first of what a turn says: its reasoning, its text, or the name of its call.
void prepend_to_turn(json::object& message, const std::string& first) {
  json::value* at = message.if_contains("reasoning_content");
  if (at == nullptr) at = &message["content"];
  json::value* calls = message.if_contains("tool_calls");
  if (at->is_string() && at->get_string().empty() && calls != nullptr)
    at = &calls->at(0).at("function").at("name");
  *at = first + std::string(at->is_string() ? at->get_string() : "");
}

}  // namespace

bool Conversation::is_assistant(size_t turn) const {
  return messages[turn].get_object().at("role") == "assistant";
}

AnswerSpans::AnswerSpans(const Conversation& conversation, Renderer render)
    : conversation_(conversation),
      render_(render),
      whole_(this->render(conversation.messages, /*with_prompt=*/false)) {}

text::RenderedChat AnswerSpans::render(const json::array& messages, bool with_prompt) const {
  return render_({.messages = json::serialize(messages),
                  .tools = conversation_.tools,
                  .vars = conversation_.vars,
                  .add_generation_prompt = with_prompt});
}

std::optional<std::string> AnswerSpans::render_first(const json::array& messages, size_t count,
                                                     bool with_prompt) const {
  if (count == 0) return std::nullopt;
  const auto end = messages.begin() + static_cast<std::ptrdiff_t>(count);
  try {
    return render(json::array(messages.begin(), end), with_prompt).text;
  } catch (const Error&) {
    return std::nullopt;
  }
}

// One that no template and no message has, of letters that nothing escapes.
std::string AnswerSpans::make_unwritten_text() const {
  std::string text = "Zq";
  do text += "xZq";
  while (whole_.text.find(text) != std::string::npos);
  return text;
}

std::string AnswerSpans::prompt_of_last() const {
  const json::array& messages = conversation_.messages;
  return render_first(messages, messages.size() - 1, /*with_prompt=*/true).value_or("");
}

std::vector<Target> AnswerSpans::find(size_t turn) const {
  const auto& marks = whole_.generated;
  size_t num_before = 0, num_answers = 0;
  for (size_t other = 0; other < conversation_.messages.size(); ++other) {
    if (!conversation_.is_assistant(other)) continue;
    if (other < turn) ++num_before;
    ++num_answers;
  }
  if (!marks.empty() && marks.size() == num_answers)
    return {{marks[num_before].first, marks[num_before].second}};
  const std::optional<Target> by_text = find_by_text(turn);
  if (marks.empty()) return by_text ? std::vector<Target>{*by_text} : std::vector<Target>();
  std::vector<Target> out;
  for (const auto& [begin, end] : marks) {
    if (by_text && begin < by_text->end && end > by_text->begin) out.push_back({begin, end});
  }
  return out;
}

std::optional<Target> AnswerSpans::find_by_text(size_t turn) const {
  const std::optional<size_t> begin = find_begin(turn), end = find_end(turn);
  if (!begin || !end || *begin >= *end) return std::nullopt;
  return Target{*begin, *end};
}

std::optional<size_t> AnswerSpans::find_begin(size_t turn) const {
  const auto prompt = render_first(conversation_.messages, turn, /*with_prompt=*/true);
  if (prompt && whole_.text.starts_with(*prompt)) return prompt->size();
  if (turn > 0) {
    if (const auto begin = find_agreement_behind(turn - 1, /*with_prompt=*/true)) return begin;
  }
  return find_first_own_byte(turn);
}

std::optional<size_t> AnswerSpans::find_end(size_t turn) const {
  if (turn + 1 == conversation_.messages.size()) return whole_.text.size();
  const auto through = render_first(conversation_.messages, turn + 1, /*with_prompt=*/false);
  if (through && whole_.text.starts_with(*through)) return through->size();
  return find_agreement_behind(turn, /*with_prompt=*/false);
}

// The place in the whole up to which it has, behind a message, what the turns so far have there.
std::optional<size_t> AnswerSpans::find_agreement_behind(size_t turn, bool with_prompt) const {
  const std::string mark = make_unwritten_text();
  json::array messages = conversation_.messages;
  append_to_content(messages[turn].get_object(), mark);
  const auto whole = render_first(messages, messages.size(), /*with_prompt=*/false);
  const auto part = render_first(messages, turn + 1, with_prompt);
  if (!whole || !part) return std::nullopt;
  const auto rest = behind(*whole, mark), rest_of_part = behind(*part, mark);
  if (!rest || !rest_of_part) return std::nullopt;
  const size_t from_end = rest->size() - agreement(*rest, *rest_of_part);
  if (common_suffix(whole_.text, *whole) < from_end) return std::nullopt;
  return whole_.text.size() - from_end;
}

std::optional<size_t> AnswerSpans::find_first_own_byte(size_t turn) const {
  const std::string mark = make_unwritten_text();
  json::array messages = conversation_.messages;
  prepend_to_turn(messages[turn].get_object(), mark);
  const auto other = render_first(messages, messages.size(), /*with_prompt=*/false);
  const size_t at = other ? other->find(mark) : std::string::npos;
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = common_prefix(whole_.text, *other);
  return begin <= at ? std::optional(begin) : std::nullopt;
}

}  // namespace strata::data
