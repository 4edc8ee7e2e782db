// SPDX-License-Identifier: Apache-2.0
#include "data/own_form.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "data/json_fields.h"
#include "data/training_marks.h"
#include "text/json_field.h"

namespace strata::data {
namespace {

namespace json = boost::json;

// As Stanford's Alpaca was trained, and as axolotl and llama.cpp's users know it.
constexpr std::string_view kAlpacaWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.\n\n";
constexpr std::string_view kAlpacaAlone =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.\n\n";

using Names = std::initializer_list<std::string_view>;

void add_ignored_fields(const json::object& record, const std::vector<std::string_view>& used,
                        std::vector<std::string>& ignored) {
  const std::vector<std::string_view>& marks = record_mark_names();
  for (const auto& field : record) {
    const std::string_view name = field.key();
    if (std::find(used.begin(), used.end(), name) != used.end()) continue;
    // A class of a text is no mark, and is not used.
    const bool is_mark = std::find(marks.begin(), marks.end(), name) != marks.end();
    if (is_mark && !(name == "label" && record.contains("text"))) continue;
    if (std::find(ignored.begin(), ignored.end(), name) == ignored.end())
      ignored.emplace_back(name);
  }
}

json::object turn(std::string_view role, json::value content) {
  return {{"role", role}, {"content", std::move(content)}};
}

// A text that may be missing, null or empty.
std::string optional_text(const json::object& record, std::string_view name) {
  return field_of(record, name) == nullptr ? std::string() : require_string_field(record, name);
}

// What stands next to turns: tools, under OpenAI's older name too, and variables of the template.
constexpr std::string_view kNextToTurns[] = {"tools", "functions", "chat_template_kwargs"};

void copy_what_is_next_to_turns(const json::object& from, json::object& to) {
  for (const std::string_view name : kNextToTurns) {
    const json::value* value = field_of(from, name);
    if (value == nullptr) continue;
    const bool is_older = name == "functions";
    if (!is_older || !to.contains("tools")) to[is_older ? "tools" : name] = *value;
  }
}

struct Alpaca {
  std::string system, instruction, input;
  json::array history;  // turns

  [[nodiscard]] std::string question() const {
    return input.empty() ? instruction : instruction + "\n" + input;
  }
};

void add_history_turns(const json::value& history, json::array& turns) {
  const auto fail = [] { fail_record("history: want a list of [question, answer]"); };
  if (!history.is_array()) fail();
  for (const json::value& pair : history.get_array()) {
    const json::array* both = pair.if_array();
    if (both == nullptr || both->size() != 2 || !(*both)[0].is_string() || !(*both)[1].is_string())
      fail();
    turns.push_back(turn("user", (*both)[0]));
    turns.push_back(turn("assistant", (*both)[1]));
  }
}

Alpaca read_alpaca(const json::object& record) {
  Alpaca alpaca{.system = optional_text(record, "system"),
                .instruction = require_string_field(record, "instruction"),
                .input = optional_text(record, record.contains("input") ? "input" : "context"),
                .history = {}};
  if (const json::value* history = field_of(record, "history")) {
    add_history_turns(*history, alpaca.history);
  }
  return alpaca;
}

// The turns before the answer.
json::array question_turns(const Alpaca& alpaca) {
  json::array turns;
  if (!alpaca.system.empty()) turns.push_back(turn("system", json::value(alpaca.system)));
  turns.insert(turns.end(), alpaca.history.begin(), alpaca.history.end());
  turns.push_back(turn("user", json::value(alpaca.question())));
  return turns;
}

json::array turns_with_answer(const Alpaca& alpaca, const std::string& answer) {
  json::array turns = question_turns(alpaca);
  turns.push_back(turn("assistant", json::value(answer)));
  return turns;
}

std::string alpaca_prompt(const Alpaca& alpaca) {
  std::string prompt(alpaca.input.empty() ? kAlpacaAlone : kAlpacaWithInput);
  prompt += "### Instruction:\n" + alpaca.instruction;
  if (!alpaca.input.empty()) prompt += "\n\n### Input:\n" + alpaca.input;
  return prompt + "\n\n### Response:\n";
}

// With this answer, as one of our own forms.
json::object alpaca_to_own_form(const Alpaca& alpaca, const std::string& answer,
                                bool has_template) {
  if (has_template) return {{"messages", turns_with_answer(alpaca, answer)}};
  if (!alpaca.system.empty() || !alpaca.history.empty()) {
    fail_record("system and history: the model has no chat template to write them with");
  }
  return {{"prompt", alpaca_prompt(alpaca)}, {"completion", answer}};
}

// With the system's text that stands next to them as the first.
json::array turns_with_system(const json::object& record, std::string_view field) {
  const json::value& given = record.at(field);
  if (!given.is_array()) {
    fail_record(fmt::format("{}: got {}, want a list", field, kind_of(given)));
  }
  json::array turns = given.get_array();
  const std::string system = optional_text(record, "system");
  json::object first = turn("system", json::value(system));
  // Some say it twice.
  if (!system.empty() && (turns.empty() || turns.front() != first))
    turns.insert(turns.begin(), std::move(first));
  return turns;
}

json::object to_chat(json::array turns, const json::object& tools_of) {
  json::object own = {{"messages", std::move(turns)}};
  copy_what_is_next_to_turns(tools_of, own);
  return own;
}

json::array joined(const json::array& first, const json::array& second) {
  json::array all = first;
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

// What comes before the answers of a pair, and whether these are turns.
struct PairPrompt {
  json::array turns;
  std::optional<Alpaca> alpaca;
  std::string text;
  bool is_text = false;
};

PairPrompt read_pair_prompt(const json::object& record) {
  PairPrompt prompt;
  if (record.contains("conversations")) {
    prompt.turns = turns_with_system(record, "conversations");
  } else if (record.contains("instruction")) {
    prompt.alpaca = read_alpaca(record);
  } else if (const json::value* value = field_of(record, "prompt")) {
    if (value->is_array()) {
      prompt.turns = value->get_array();
    } else {
      prompt.text = require_string_field(record, "prompt");
      prompt.is_text = true;
    }
  }
  return prompt;
}

// A prompt of any form as the turns before an answer.
json::array turns_of(const PairPrompt& prompt) {
  if (prompt.alpaca) return question_turns(*prompt.alpaca);
  if (prompt.is_text) return {turn("user", json::value(prompt.text))};
  return prompt.turns;
}

// A list that begins with a turn of the user, or of the system, is the whole conversation.
bool is_whole_conversation(const json::array& turns) {
  const json::object* first = turns.empty() ? nullptr : turns[0].if_object();
  if (first == nullptr) return false;
  const json::value* role = field_of(*first, "role");
  if (role == nullptr) role = field_of(*first, "from");
  return role != nullptr && role->is_string() && role->get_string() != "assistant" &&
         role->get_string() != "gpt";
}

json::object pair_answer_to_own_form(const json::object& record, std::string_view name,
                                     const PairPrompt& prompt, bool has_template) {
  const json::value* answer = field_of(record, name);
  if (answer == nullptr) fail_record(fmt::format("{}: missing, want a string or messages", name));
  if (const json::array* turns = answer->if_array()) {
    if (is_whole_conversation(*turns)) return to_chat(*turns, record);
    return to_chat(joined(turns_of(prompt), *turns), record);
  }
  if (answer->is_object()) {
    json::array turns = turns_of(prompt);
    turns.push_back(*answer);
    json::object own = to_chat(std::move(turns), record);
    own[kAnswerField] = name;
    return own;
  }
  const std::string text = require_string_field(record, name);
  if (prompt.alpaca) return alpaca_to_own_form(*prompt.alpaca, text, has_template);
  if (!prompt.turns.empty()) {
    return to_chat(joined(prompt.turns, {turn("assistant", json::value(text))}), record);
  }
  if (prompt.is_text) return {{"prompt", prompt.text}, {"completion", text}};
  return {{"text", text}};
}

// How good both answers were found, by the names that data sets of the hub have for it.
constexpr std::array<std::string_view, 2> kScores[] = {{"score_chosen", "score_rejected"},
                                                       {"rating_chosen", "rating_rejected"},
                                                       {"chosen-rating", "rejected-rating"}};

bool has_equal_scores(const json::object& record) {
  for (const auto& [of_chosen, of_rejected] : kScores) {
    const json::value* chosen = field_of(record, of_chosen);
    const json::value* rejected = field_of(record, of_rejected);
    if (chosen == nullptr || rejected == nullptr) continue;
    if (!chosen->is_number() || !rejected->is_number()) continue;
    if (chosen->to_number<double>() == rejected->to_number<double>()) return true;
  }
  return false;
}

// Turns that both begin with, but for the last of each, which is its answer.
size_t count_shared_turns(const json::array& chosen, const json::array& rejected) {
  size_t count = 0;
  const size_t most = std::min(chosen.size(), rejected.size());
  while (count + 1 < most && chosen[count] == rejected[count]) ++count;
  return count;
}

// Texts without a prompt have as theirs what both begin with, up to a space before it: so TRL reads
// them too (extract_prompt).
void move_shared_text_to_prompt(json::object& chosen, json::object& rejected) {
  const std::string a(chosen.at("text").get_string()), b(rejected.at("text").get_string());
  auto end = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto is_inside = [&](const std::string& text) {
    return end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80;
  };
  while (end > 0 && (is_inside(a) || is_inside(b))) --end;
  if (end > 0 && a[end - 1] == ' ') --end;
  chosen = {{"prompt", a.substr(0, end)}, {"completion", a.substr(end)}};
  rejected = {{"prompt", b.substr(0, end)}, {"completion", b.substr(end)}};
}

// Those that its examples are made of. Tools go with messages alone.
std::vector<std::string_view> fields_of_pair(const json::object& record, const PairPrompt& prompt) {
  std::vector<std::string_view> used = {"chosen", "rejected"};
  for (const auto& names : kScores) used.insert(used.end(), names.begin(), names.end());
  const auto has_messages = [&](std::string_view name) {
    const json::value* answer = field_of(record, name);
    return answer != nullptr && !answer->is_string();
  };
  if (!prompt.turns.empty() || has_messages("chosen") || has_messages("rejected"))
    used.insert(used.end(), std::begin(kNextToTurns), std::end(kNextToTurns));
  if (record.contains("conversations")) {
    used.insert(used.end(), {"conversations", "system"});
  } else if (prompt.alpaca) {
    used.insert(used.end(), {"instruction", "input", "context", "history", "system"});
  } else {
    used.push_back("prompt");
  }
  return used;
}

OwnRecord from_preference(const json::object& record, bool has_template,
                          std::vector<std::string>& ignored) {
  const PairPrompt prompt = read_pair_prompt(record);
  add_ignored_fields(record, fields_of_pair(record, prompt), ignored);
  OwnRecord own = {.form = Form::kPreference,
                   .object = pair_answer_to_own_form(record, "chosen", prompt, has_template),
                   .rejected = pair_answer_to_own_form(record, "rejected", prompt, has_template),
                   .is_tie = has_equal_scores(record)};
  const auto both_have = [&](std::string_view name) {
    return own.object.contains(name) && own.rejected->contains(name);
  };
  if (both_have("messages")) {
    own.first_trained = count_shared_turns(own.object.at("messages").get_array(),
                                           own.rejected->at("messages").get_array());
  } else if (both_have("text")) {
    move_shared_text_to_prompt(own.object, *own.rejected);
  }
  return own;
}

OwnRecord from_alpaca(const json::object& record, bool has_template,
                      std::vector<std::string>& ignored) {
  add_ignored_fields(record,
                     {"instruction", "input", "context", "output", "response", "system", "history"},
                     ignored);
  const std::string answer =
      require_string_field(record, record.contains("output") ? "output" : "response");
  return {.form = Form::kAlpaca,
          .object = alpaca_to_own_form(read_alpaca(record), answer, has_template)};
}

OwnRecord from_share_gpt(const json::object& record, std::vector<std::string>& ignored) {
  std::vector<std::string_view> used = {"conversations", "system"};
  used.insert(used.end(), std::begin(kNextToTurns), std::end(kNextToTurns));
  add_ignored_fields(record, used, ignored);
  json::array turns = turns_with_system(record, "conversations");
  const bool has_system = turns.size() > record.at("conversations").get_array().size();
  return {.form = Form::kShareGpt,
          .object = to_chat(std::move(turns), record),
          .turns_field = "conversations",
          .num_added = has_system ? size_t{1} : 0};
}

[[noreturn]] void fail_mixed_kinds(const json::value& prompt, const json::value& completion) {
  fail_record(
      fmt::format("prompt and completion: got {} and {}; want two strings, or two lists "
                  "of messages",
                  kind_of(prompt), kind_of(completion)));
}

OwnRecord from_turn_lists(const json::object& record, const json::array& prompt,
                          const json::array& completion, std::vector<std::string>& ignored) {
  add_ignored_fields(record, {"prompt", "completion", "tools", "functions", "chat_template_kwargs"},
                     ignored);
  return {.form = Form::kTurnLists,
          .object = to_chat(joined(prompt, completion), record),
          .first_trained = prompt.size()};
}

OwnRecord from_prompt_completion(const json::object& record, std::vector<std::string>& ignored) {
  const json::value* prompt = field_of(record, "prompt");
  const json::value* completion = field_of(record, "completion");
  if (prompt != nullptr && completion != nullptr) {
    if (prompt->is_array() != completion->is_array()) fail_mixed_kinds(*prompt, *completion);
    if (prompt->is_array())
      return from_turn_lists(record, prompt->get_array(), completion->get_array(), ignored);
  }
  add_ignored_fields(record, {"prompt", "completion"}, ignored);
  return {.form = Form::kPromptCompletion,
          .object = {{"prompt", require_string_field(record, "prompt")},
                     {"completion", require_string_field(record, "completion")}}};
}

OwnRecord from_text(const json::object& record, std::vector<std::string>& ignored) {
  add_ignored_fields(record, {"text"}, ignored);
  return {.form = Form::kText, .object = {{"text", require_string_field(record, "text")}}};
}

OwnRecord from_messages(const json::object& record, std::vector<std::string>& ignored) {
  std::vector<std::string_view> used = {"messages", "system"};
  used.insert(used.end(), std::begin(kNextToTurns), std::end(kNextToTurns));
  add_ignored_fields(record, used, ignored);
  json::array turns = turns_with_system(record, "messages");
  const bool has_system = turns.size() > record.at("messages").get_array().size();
  return {.form = Form::kMessages,
          .object = to_chat(std::move(turns), record),
          .num_added = has_system ? size_t{1} : 0};
}

std::string first_field_names(const json::object& record) {
  constexpr size_t kShown = 8;
  std::vector<std::string_view> names;
  for (const auto& field : record) {
    if (names.size() == kShown) break;
    names.push_back(field.key());
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

[[noreturn]] void fail_unknown_form(const json::object& record, bool has_many) {
  std::string message =
      fmt::format("want exactly one of prompt and completion, text, or messages; got {}",
                  has_many ? "more than one" : "none of them");
  if (!has_many) {
    const std::string names = first_field_names(record);
    message += fmt::format(
        ", but {}; or of Alpaca (instruction, output), ShareGPT (conversations); fields of other "
        "names are read with --fields, as in question=prompt,answer=completion",
        names.empty() ? "no field at all" : names);
  }
  fail_record(message);
}

// Without them a record would say something else.
void refuse_media(const json::object& record) {
  for (const std::string_view name : {"images", "image", "videos", "audios"}) {
    const json::value* value = field_of(record, name);
    const json::array* list = value == nullptr ? nullptr : value->if_array();
    if (value == nullptr || (list != nullptr && list->empty())) continue;
    fail_record(
        fmt::format("{}: the record has some, and Strata reads text alone; leave the "
                    "record out, or the field where the text does not need it",
                    name));
  }
}

}  // namespace

OwnRecord to_own_form(const json::object& record, bool has_template,
                      std::vector<std::string>& ignored) {
  refuse_media(record);
  if (record.contains("chosen") || record.contains("rejected")) {
    return from_preference(record, has_template, ignored);
  }
  const bool has_answer = record.contains("output") || record.contains("response");
  // Also where it has the whole as a text with them, as Stanford's file does.
  if (record.contains("instruction") && has_answer)
    return from_alpaca(record, has_template, ignored);
  const bool is_chat = record.contains("messages");
  const bool is_text = record.contains("text");
  // A prompt next to messages is the first of them again.
  const bool is_pair = record.contains("completion") || (record.contains("prompt") && !is_chat);
  const bool is_share_gpt = record.contains("conversations") && !is_chat;
  const int count = is_chat + is_text + is_pair + is_share_gpt;
  if (count != 1) fail_unknown_form(record, count > 1);
  if (is_share_gpt) return from_share_gpt(record, ignored);
  if (is_pair) return from_prompt_completion(record, ignored);
  return is_text ? from_text(record, ignored) : from_messages(record, ignored);
}

}  // namespace strata::data
