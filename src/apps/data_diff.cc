// SPDX-License-Identifier: Apache-2.0
#include "apps/data_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <optional>

#include "base/error.h"
#include "data/chat_example.h"
#include "data/field_names.h"
#include "data/record_reader.h"
#include "report/text_width.h"
#include "server/openai/chat_body.h"
#include "text/json_field.h"

namespace strata::apps {
namespace {

namespace json = boost::json;

constexpr size_t kContext = 40;  // bytes before a difference that are shown

std::optional<std::string> find_record(const DataOptions& o, const data::DataFile& file,
                                       int64_t line) {
  const std::vector<data::FieldName> fields = data::parse_field_names(o.fields);
  const auto records = data::make_record_reader(*file.file, file.layout);
  while (const auto record = records->next()) {
    if (record->line == line && record->fault.empty()) {
      return fields.empty() ? std::string(record->json) : data::rename_fields(record->json, fields);
    }
    if (record->line > line) break;
  }
  return std::nullopt;
}

data::TrainOn train_on_of(const DataOptions& o) {
  return o.train_on == "all" ? data::TrainOn::kAll : data::TrainOn::kLast;
}

json::array trained_messages(const data::ReadConversation& read, data::TrainOn train_on) {
  json::array out;
  const size_t count = read.conversation.messages.size();
  for (size_t turn = train_on == data::TrainOn::kAll ? 0 : count - 1; turn < count; ++turn) {
    if (read.conversation.is_assistant(turn) && !read.is_marked_out[turn]) out.push_back(turn);
  }
  return out;
}

json::value conversation_json(const DataOptions& o, const data::DataFile& file, int64_t line,
                              const TextStack& text) {
  json::object own;
  const auto record = find_record(o, file, line);
  const auto read =
      record ? data::parse_conversation(*record, text.has_template(), text.conversation_form(), own)
             : std::nullopt;
  if (!read) return nullptr;
  json::object out = {{"file", file.file->shown()}, {"line", line}};
  out["messages"] = read->conversation.messages;
  if (!read->conversation.tools.empty())
    out["tools"] = text::parse_json(read->conversation.tools, "tools");
  if (!read->conversation.vars.empty())
    out["chat_template_kwargs"] = text::parse_json(read->conversation.vars, "vars");
  out["trained"] = trained_messages(*read, train_on_of(o));
  return out;
}

// What a server makes of the messages before a turn, or why it refuses them.
std::string served_prompt(const json::object& own, const data::ReadConversation& read, size_t turn,
                          const TextStack& text) {
  const json::array& given = own.at("messages").get_array();
  json::object body = {
      {"messages", json::array(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(turn))}};
  if (!read.conversation.tools.empty())
    body["tools"] = text::parse_json(read.conversation.tools, "tools");
  if (!read.conversation.vars.empty())
    body["chat_template_kwargs"] = text::parse_json(read.conversation.vars, "vars");
  server::ServedText served{.tokenizer = text.tokenizer(), .chat = text.chat_template()};
  served.vars = text.vars();
  return served.chat->render(server::read_conversation(text::Fields(body, ""), served));
}

size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                             a.begin());
}

std::string from_difference(std::string_view text, size_t at) {
  size_t begin = at - std::min(at, kContext);
  while (begin > 0 && (text[begin] & 0xC0) == 0x80) --begin;
  return report::printable_lines(std::string(text.substr(begin)));
}

void print_answer(const std::string& served, const std::string& whole, const data::Target& answer) {
  const std::string before = whole.substr(0, answer.begin);
  const std::string said = whole.substr(answer.begin, answer.end - answer.begin);
  if (served == before) {
    fmt::print("equal: the server's prompt is what is trained before the answer\n{}[[{}]]\n",
               report::printable_lines(before), report::printable_lines(said));
    return;
  }
  const size_t at = common_prefix(served, before);
  fmt::print("the first {} bytes are equal; then\nserved:\n{}\ntrained:\n{}[[{}]]\n", at,
             from_difference(served, at), from_difference(before, at),
             report::printable_lines(said));
}

void print_record(const DataOptions& o, const std::string& record, const TextStack& text) {
  json::object own;
  const auto read =
      data::parse_conversation(record, text.has_template(), text.conversation_form(), own);
  if (!read) return fmt::print("no chat: it is trained as it stands, and no template writes it\n");
  const auto render = [&](const text::ChatRequest& request) { return text.render_marked(request); };
  const data::AnswerSpans spans(read->conversation, render);
  for (const json::value& item : trained_messages(*read, train_on_of(o))) {
    const auto turn = item.to_number<size_t>();
    const std::vector<data::Target> found = spans.find(turn);
    fmt::print("answer messages[{}]: ", turn);
    if (found.empty()) {
      fmt::print("it is not found in what the template makes of the whole\n");
      continue;
    }
    if (turn == 0) {
      fmt::print("nothing is before it that a server could be asked\n");
      continue;
    }
    try {
      print_answer(served_prompt(own, *read, turn, text), spans.whole().text, found.front());
    } catch (const Error& error) {
      fmt::print("a server refuses the messages before it: {}\n", error.what());
    }
  }
}

}  // namespace

json::array conversations_json(const DataOptions& o, const data::Dataset& dataset,
                               const std::vector<size_t>& examples, const TextStack& text) {
  json::array out;
  for (const size_t example : examples) {
    const auto number = static_cast<int64_t>(example);
    const auto file = std::ranges::find_if(dataset.files, [&](const data::DataFile& one) {
      return number >= one.first && number < one.first + one.count;
    });
    out.push_back(
        conversation_json(o, *file, file->lines[static_cast<size_t>(number - file->first)], text));
  }
  return out;
}

void print_diff(const DataOptions& o, const std::vector<data::DataFile>& files,
                const TextStack& text) {
  for (const data::DataFile& file : files) {
    const auto record = find_record(o, file, o.diff);
    if (!record) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("--diff: {}: no record begins at line {}", file.file->shown(), o.diff));
    }
    fmt::print("{}:{}\n", file.file->shown(), o.diff);
    print_record(o, *record, text);
  }
}

}  // namespace strata::apps
